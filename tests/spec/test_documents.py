"""Every example in the documents works: the suite in docs/FORMAT.md is a suite."""

from __future__ import annotations

import re
from pathlib import Path

from kvbench.spec import Suite, Workload, parse_suite
from kvbench.spec.suite import Limits, Timeouts

ROOT = Path(__file__).resolve().parents[2]
FORMAT = (ROOT / "docs/FORMAT.md").read_text()


def test_the_example_suite_is_valid_and_its_defaults_are_the_defaults() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", FORMAT, re.S)
    suite, cells = parse_suite(example.encode(), "FORMAT.md")
    assert len(cells) == 3
    assert suite.delta == 0.01 and suite.timeouts == Timeouts()
    assert suite.workload == Workload()
    assert suite.environment == Limits(other_cores=0.5)


def test_every_key_of_a_suite_is_documented() -> None:
    for key in Suite.__struct_fields__:
        assert re.search(rf"\b{key}\b", FORMAT), key


def test_the_action_uses_only_commands_that_exist() -> None:
    from kvbench.cli.table import COMMANDS

    text = (ROOT / ".github/actions/kvbench/action.yml").read_text()
    text += (ROOT / "docs/CI.md").read_text()
    used = set(re.findall(r"(?m)^\s*(?:run: )?kvbench (\w+)", text))
    assert used and used <= set(COMMANDS)
