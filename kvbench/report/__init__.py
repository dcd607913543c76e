"""Views of records: terminal, Markdown, HTML, benchstat, JUnit. No measuring, no judging.

``terminal.print_summary``, ``progress.Progress``, ``files.write_reports``; nothing is imported
here, so that a command pays only for the view it draws.
"""
