"""``kvbench export``: a stored experiment in another program's format."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("run")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["benchstat", "csv", "github", "junit", "markdown", "parquet"]),
    required=True,
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file; default: stdout.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
def command(run: str, kind: str, output: Path | None, root: Path) -> None:
    """Write a stored experiment in another format.

    RUN is its directory or its id.
    """
    from runner.store import find_run, load_summary

    summary = load_summary(find_run(run, root))
    if kind in ("csv", "parquet"):
        from kvbench.report.tabular import runs_frame, write_table

        if output is not None:
            write_table(summary, output, "csv" if kind == "csv" else "parquet")
        elif kind == "parquet":
            raise click.UsageError("Parquet is written to a file: give --output")
        else:
            click.echo(runs_frame(summary).to_csv(index=False), nl=False)
        return
    text = _render(kind, summary)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _render(kind: str, summary: object) -> str:
    from kvbench.records import Summary

    assert isinstance(summary, Summary)
    if kind == "benchstat":
        from kvbench.report.benchstat import render_benchstat

        return render_benchstat(summary)
    if kind == "junit":
        from kvbench.report.experiment_junit import render_junit

        return render_junit(summary)
    if kind == "github":
        from kvbench.report.github import render_annotations

        return render_annotations(summary)
    from kvbench.report.markdown import render_markdown

    return render_markdown(summary)
