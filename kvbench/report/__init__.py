"""Views of records: terminal, Markdown, HTML, benchstat, JUnit. No measuring, no judging."""
