"""An experiment's directory: plan, journal, environments, details, summary and reports."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvbench.environment import fingerprint_hash
from kvbench.errors import UsageError
from kvbench.records import Summary, decode_summary, encode_summary, full_result, read_journal
from kvbench.records.journal import DETAILS_NAME, write_durably
from kvbench.spec import Cell
from runner.plan import Plan, load_plan
from runner.state import State, fold
from runner.verdict import Sources, summarise

SUMMARY_NAME = "summary.json"
ENVIRONMENTS = "environments"
DEFAULT_ROOT = Path("results")


def find_run(ref: str, root: Path = DEFAULT_ROOT) -> Path:
    """The directory of a stored experiment, given by path or by id. Raises ``UsageError``."""
    for path in (Path(ref), root / ref):
        if (path / "plan.json").is_file():
            return path
    known = sorted(path.parent.name for path in root.glob("*/plan.json"))
    there = ", ".join(known[-5:]) or "none"
    raise UsageError(f"{ref}: no stored experiment (looked in {root}/; the latest: {there})")


def store_environment(directory: Path, content: Mapping[str, Any], digest: str) -> None:
    """Keep a fingerprint under its hash, durably, once."""
    path = directory / ENVIRONMENTS / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_durably(path, msgspec.json.format(msgspec.json.encode(content), indent=1))


def load_environment(directory: Path, digest: str) -> dict[str, Any]:
    """The fingerprint with that hash. Raises ``UsageError`` if it is missing or was changed."""
    content = _load_json(directory / ENVIRONMENTS / f"{digest}.json")
    if fingerprint_hash(content) != digest:
        raise UsageError(f"{directory / ENVIRONMENTS / digest}.json: it is not what was recorded")
    return content


def load_details(directory: Path, digest: str) -> dict[str, Any]:
    """The side file with that hash. Raises ``UsageError`` if it is missing or was changed."""
    path = directory / DETAILS_NAME / f"{digest}.json"
    content = _load_json(path)
    if hashlib.sha256(path.read_bytes()).hexdigest()[:32] != digest:
        raise UsageError(f"{path}: it is not what was recorded")
    return content


def _load_json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: damaged: {error}") from error


def sources_of(directory: Path) -> Sources:
    """Look-ups into the directory's side files."""
    return Sources(
        full=lambda line: full_result(line, directory),
        environment=cache(lambda digest: load_environment(directory, digest)),
        details=lambda digest: load_details(directory, digest),
    )


def state_of(directory: Path, plan: Plan, cells: tuple[Cell, ...]) -> State:
    """The journal's content, with a note if its last line was torn. Raises ``UsageError``."""
    content = read_journal(directory)
    try:
        return fold(content.lines, [(c.name, [a.name for a in c.arms]) for c in cells])
    except ValueError as error:
        raise UsageError(f"{directory}: plan and journal do not fit: {error}") from error


def judge_again(directory: Path) -> Summary:
    """The summary from plan and journal alone, whatever summary.json says."""
    plan = load_plan(directory)
    _, cells = plan.resolve()
    with _collector_paused():
        return summarise(plan, state_of(directory, plan, cells), sources_of(directory))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A large journal makes millions of objects without cycles; searching for some doubles it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def store_summary(directory: Path, summary: Summary) -> None:
    """Write summary.json and the reports beside it."""
    from kvbench.report.files import write_reports

    write_durably(directory / SUMMARY_NAME, encode_summary(summary))
    write_reports(summary, directory)


def load_summary(directory: Path) -> Summary:
    """summary.json of a stored experiment. Raises ``UsageError``."""
    path = directory / SUMMARY_NAME
    try:
        return decode_summary(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: not a summary: {error}") from error
