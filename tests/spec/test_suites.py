"""Issue 2: suites are strict; every refusal names file, key and reason. M3: n even or looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.spec import find_suite, load_suite, parse_suite, suite_from_builtins, suite_names

BASE = """
schema = 1
name = "t"
baseline = "a"
[workload]
kind = "prose"
prompt_tokens = 64
[[arms]]
name = "a"
engine = "reference"
settings = { depth = 0 }
[[arms]]
name = "b"
engine = "reference"
settings = { depth = 1 }
"""


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_suite(text.encode(), "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ") and "\n" not in message
    return message.removeprefix("my.toml: ")


@pytest.mark.parametrize("name", suite_names())
def test_bundled_suites_are_valid_and_named_like_their_file(name: str) -> None:
    suite, cells = load_suite(name)
    assert suite.name == name and suite.description and cells


def test_defaults() -> None:
    suite, cells = parse_suite(BASE.encode(), "my.toml")
    assert suite.total_blocks == 6 and suite.delta == 0.01 and suite.gate == "exact"
    assert [cell.name for cell in cells] == ["main"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "schema: 2; this kvbench reads 1"),
        ("schema = 1", "schema = 99\nof_that_version = 1", "schema: 99; this kvbench reads 1"),
        ("schema = 1", "schema = true", "schema: expected `int`, got `bool`"),
        ("schema = 1", "", "schema: missing"),
        ("schema = 1", "schema = ", "not TOML: "),
        ('baseline = "a"', 'baseline = "c"', "baseline: 'c' is no arm; arms are a, b"),
        ('name = "b"', 'name = "a"', "arms[1].name: 'a' appears twice"),
        ('name = "b"', 'name = "b/c"', "arms[1].name: expected `str` matching"),
        ("prompt_tokens", "promt_tokens", "workload.promt_tokens: unknown key"),
        ("= 64", '= "64"', "workload.prompt_tokens: expected `int`, got `str`"),
        ("= 64", "= 0", "workload.prompt_tokens: expected `int` >= 1"),
        ("schema = 1", "schema = 1\nblocks = 5", "blocks: 5 is odd"),
        ("schema = 1", "schema = 1\nlooks = [4, 4]", "looks[1]: 4 does not increase"),
        ("schema = 1", "schema = 1\nlooks = [4, 7]", "looks[1]: 7 is odd"),
        ("schema = 1", "schema = 1\nlooks = [4]", "looks: one look is blocks = 4"),
        ("schema = 1", "schema = 1\nlooks = [4, 8]\nblocks = 8", "looks: cannot be given beside"),
        ("schema = 1", "schema = 1\ndelta = 0.0", "delta: expected `float` > 0.0"),
        ("schema = 1", 'schema = 1\ngate = "maybe"', "gate: "),
        ("schema = 1", 'schema = 1\ngate = "tolerance"', "tolerance: goes with"),
        ("schema = 1", "schema = 1\naffinity = [0, 0]", "affinity: [0, 0]"),
        ("[workload]", "[link]\ngb_s = 1.0\nratio = 1.0\n[workload]", "link: give exactly one"),
        ("[workload]", "[link]\n[workload]", "link: give exactly one"),
        ('"prose"', '"file"', "workload.path: goes with"),
        ("{ depth = 1 }", '{ depth = 1 }\ncommand = ["x"]', "arms[1].command: goes with"),
        (
            "{ depth = 1 }",
            '{ url = "http://127.0.0.1:1" }',
            "arms[1].settings.url: a server that is already running needs process",
        ),
        ("[workload]", "[grid]\nworkload.x = [1]\n[workload]", "grid.workload.x: not an axis"),
        ("[workload]", "[grid]\nsettings.x = []\n[workload]", "grid.settings.x: has no values"),
        ("[workload]", "[grid]\nsettings.x = [1, 1]\n[workload]", "grid.settings.x: 1 appears"),
        ("[workload]", "[grid]\narms.z.x = [1]\n[workload]", "grid.arms.z.x: not an axis"),
        (
            "[workload]",
            "[grid]\nworkload.generate = [0]\n[workload]",
            "grid.workload.generate: 0: Expected `int` >= 1",
        ),
    ],
)
def test_refusals_name_key_and_reason(old: str, new: str, said: str) -> None:
    assert old in BASE
    assert refusal(BASE.replace(old, new, 1)).startswith(said)


def test_another_version_is_named_before_what_it_lacks_here() -> None:
    assert refusal("schema = 99") == "schema: 99; this kvbench reads 1"


def with_grid(exclude: str = "") -> str:
    grid = (
        "[grid]\nworkload.prompt_tokens = [64, 128]\narms.b.depth = [1, 2]\n"
        'settings.kv = ["f16", "q8_0"]\n'
    )
    return BASE.replace("[workload]", grid + "[workload]") + exclude


def test_a_grid_is_the_product_less_the_exclusions() -> None:
    exclude = '[[exclude]]\n"workload.prompt_tokens" = 128\n"arms.b.depth" = [2]\n'
    _, cells = parse_suite(with_grid(exclude).encode(), "my.toml")
    assert len(cells) == 6
    last = cells[-1]
    assert last.name == "prompt_tokens=128,b.depth=1,kv=q8_0"
    assert last.workload.prompt_tokens == 128
    assert last.arm("b").settings == {"depth": 1, "kv": "q8_0"}
    assert last.arm("a").settings == {"depth": 0, "kv": "q8_0"}


@pytest.mark.parametrize(
    ("exclude", "said"),
    [
        ('[[exclude]]\n"workload.seed" = 1\n', "exclude[0].workload.seed: not an axis"),
        ('[[exclude]]\n"arms.b.depth" = 9\n', "exclude[0]: {'arms.b.depth': 9} matches no cell"),
        ('[[exclude]]\n"arms.b.depth" = [1, 2]\n', "exclude: every cell"),
        ("[[exclude]]\n", "exclude[0]: names no axis"),
    ],
)
def test_exclusions_that_cannot_be_meant_are_refused(exclude: str, said: str) -> None:
    assert refusal(with_grid(exclude)).startswith(said)


def test_long_names_are_cut_and_stay_different() -> None:
    long = "x" * 200
    grid = f'[grid]\nsettings.path = ["{long}a", "{long}b"]\n'
    _, cells = parse_suite(BASE.replace("[workload]", grid + "[workload]").encode(), "my.toml")
    assert len({cell.name for cell in cells}) == 2
    assert all(len(cell.name) == 120 for cell in cells)


def test_a_link_axis_replaces_the_other_way_of_giving_it() -> None:
    text = BASE.replace("[workload]", "[grid]\nlink.ratio = [0.5, 2]\n[workload]")
    _, cells = parse_suite(text.encode(), "my.toml")
    assert [cell.link and cell.link.ratio for cell in cells] == [0.5, 2.0]


def test_a_grid_too_large_is_refused_before_it_is_built() -> None:
    values = list(range(1, 400))
    grid = f"[grid]\nsettings.x = {values}\nsettings.y = {values}\n[workload]"
    assert "at most 20000" in refusal(BASE.replace("[workload]", grid))


def test_unknown_suite_and_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"bundled suite .*main"):
        find_suite("nope")
    with pytest.raises(UsageError, match=r"x\.toml: cannot read the suite: No such file"):
        load_suite(str(tmp_path / "x.toml"))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KEYS = ["schema", "name", "arms", "baseline", "grid", "exclude", "workload", "link", "looks"]


@given(st.dictionaries(st.sampled_from([*KEYS, "x"]), json_like, max_size=4))
def test_anything_is_either_a_suite_or_one_clear_line(change: dict[str, Any]) -> None:
    import tomllib

    raw = {**tomllib.loads(BASE), **change}
    try:
        suite_from_builtins(raw, "my.toml")
    except UsageError as error:
        assert str(error).startswith("my.toml: ")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("schema = 1", "schema = 1\nlink = { gb_s = inf }", "link.gb_s: inf is not a finite"),
        ("schema = 1", "schema = 1\ndelta = nan", "delta: nan is not a finite number"),
        ("schema = 1", "schema = 1\nlink = { ratio = 1e-320 }", "link.ratio: expected `float` >="),
        ("{ depth = 1 }", "{ link_gb_s = inf }", "arms[1].settings.link_gb_s: inf is not"),
        (
            "schema = 1",
            "schema = 1\nenvironment = { other_cores = inf }",
            "environment.other_cores: inf",
        ),
        (
            "schema = 1",
            "schema = 1\ngrid = { settings = { delay_ms = [1.0, -inf] } }",
            "grid.settings.delay_ms[1]: -inf is not",
        ),
    ],
)
def test_values_that_a_stored_plan_cannot_hold(old: str, new: str, reason: str) -> None:
    assert refusal(BASE.replace(old, new, 1)).startswith(reason)


def test_a_wrong_word_is_told_the_right_ones() -> None:
    said = refusal(BASE.replace("schema = 1", 'schema = 1\ngate = "maybe"', 1))
    assert said == "gate: invalid enum value 'maybe'; allowed: exact, none, tolerance"
    said = refusal(BASE.replace('"prose"', '"prose"\nhistory = "x"', 1))
    assert said == "workload.history: invalid enum value 'x'; allowed: seeded, text"
