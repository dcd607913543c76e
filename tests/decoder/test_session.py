"""Tasks: the same bytes in every arm, bytes parity, snapshots, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.transport.harness import model_of
from kvbench.decoder import snapshot
from kvbench.decoder.engine import Engine
from kvbench.decoder.session import DecodeTask, measure_parts, run_task
from kvbench.decoder.settings import parse
from kvbench.errors import KvbenchError, SettingError, UsageError

TINY = "synthetic:tiny,layers=5"
TASK = DecodeTask([list(range(1, 60)), list(range(9, 30))], generate=6, warmup=2, detail=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    "settings",
    [
        {"depth": 1},
        {"depth": 4},
        {"depth": 1, "tail": "host", "boundary": "wait"},
        {"depth": 1, "graphs": True},
        {"depth": 1, "pinned": False, "link_gb_s": 1.0},
        {"depth": 1, "device_layers": 2},
    ],
)
def test_arms_agree(settings: dict[str, object]) -> None:
    """The pipelined path never changes a byte, and moves as many (bytes parity)."""
    model = model_of(TINY)
    base = run_task(model, parse({"audit": True}), TASK).result
    arm = run_task(model, parse({**settings, "audit": True, "record": True}), TASK).result
    assert arm.hashes == base.hashes
    assert arm.telemetry["races"] == []
    if "device_layers" not in settings:
        assert sum(arm.bytes.values()) == sum(base.bytes.values())
    assert arm.tokens == 12 and arm.decode_s > 0


def test_other_kv_types_are_other_numbers() -> None:
    """The hash covers the logits' bytes: q8_0 differs from f16."""
    model = model_of("synthetic:tiny,layers=2,head_dim=32,heads=2,kv_heads=1")
    digests = {
        run_task(model, parse({"kv_type": kv}), TASK).result.hashes["logits"]
        for kv in ("f16", "q8_0", "q4_0")
    }
    assert len(digests) == 3


def test_snapshots_are_made_once_and_checked(tmp_path: Path) -> None:
    """A kept prefill is used again; a damaged file is removed and made anew, the same."""
    model, settings = model_of(TINY), parse({})
    first = run_task(model, settings, TASK).result
    files = sorted((tmp_path / "snapshots").glob("*.kv"))
    assert len(files) == 2
    stamps = [f.stat().st_ino for f in files]
    assert run_task(model, settings, TASK).result.hashes == first.hashes
    assert [f.stat().st_ino for f in files] == stamps
    whole = files[0].read_bytes()
    for place in (0, 8, 30, -1):  # length, seal, head, rows
        damaged = bytearray(whole)
        damaged[place] ^= 1
        files[0].write_bytes(damaged)
        assert run_task(model, settings, TASK).result.hashes == first.hashes
        assert bytes(damaged) != files[0].read_bytes()
    for other in (b"", whole[:100], whole[:-1], whole + b"x", files[1].read_bytes()):
        files[0].write_bytes(other)
        assert run_task(model, settings, TASK).result.hashes == first.hashes
        assert other != files[0].read_bytes()


def test_the_snapshot_cache_has_a_cap(tmp_path: Path) -> None:
    """Least recently used first."""
    run_task(model_of(TINY), parse({}), TASK)
    kept = sum(f.stat().st_size for f in (tmp_path / "snapshots").glob("*.kv"))
    assert snapshot.trim(kept) == 0
    assert snapshot.trim(0) == kept
    assert not list((tmp_path / "snapshots").glob("*.kv"))


def test_without_snapshots_the_prompt_runs_through_the_transport() -> None:
    """Prefill over a pipelined host cache gives what a resident one gives."""
    model = model_of(TINY)
    task = DecodeTask(TASK.prompts, generate=4, snapshots=False)
    base = run_task(model, parse({"resident": True}), task).result
    arm = run_task(model, parse({"depth": 2}), task).result
    assert arm.hashes == base.hashes


def test_teacher_forcing_follows_the_teacher() -> None:
    """Forced along its own output a run repeats its logits; along another's it does not."""
    model, settings = model_of(TINY), parse({"depth": 1})
    free = run_task(model, settings, TASK)
    forced = run_task(
        model, settings, DecodeTask(TASK.prompts, generate=6, warmup=2, teacher=free.tokens)
    )
    assert forced.result.hashes["logits"] == free.result.hashes["logits"]
    other = [[(t + 1) % 512 for t in row] for row in free.tokens]
    off = run_task(model, settings, DecodeTask(TASK.prompts, 6, 2, teacher=other))
    assert off.result.hashes["logits"] != free.result.hashes["logits"]


def test_details_are_the_two_best() -> None:
    """top2 holds the chosen token first, with a margin that is not negative."""
    run = run_task(model_of(TINY), parse({}), TASK)
    for tokens, pairs in zip(run.tokens, run.top2, strict=True):
        assert [p[0] for p in pairs] == tokens
        assert all(p[1] >= p[3] and p[0] != p[2] for p in pairs)


def test_parts_give_the_link_for_a_ratio() -> None:
    """copy : compute = 1 at window bytes / compute seconds."""
    parts = measure_parts(model_of(TINY), parse({}), TASK)
    assert parts.window_bytes > 0 and parts.compute_s > 0
    assert parts.link_bytes_per_s(2.0) == parts.window_bytes / (2 * parts.compute_s)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deptj": 1}, "unknown field `deptj`"),
        ({"depth": "one"}, "depth"),
        ({"depth": 99}, "depth = 99"),
        ({"faults": ["no_such"]}, "no_ready_wait"),
        ({"kv_type": "f8"}, "f8"),
        ({"graphs": True, "loop": "blocking"}, "graphs"),
        ({"graphs": True, "devices": 2}, "graphs"),
        ({"resident": True, "depth": 1}, "depth"),
        ({"devices": 6}, "at most 5 layers"),
        ({"context": 5000}, "exceed the context"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """One line that names the setting, its value and what is allowed."""
    with pytest.raises(KvbenchError) as error:
        run_task(model_of(TINY), parse(settings), TASK)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (DecodeTask([[]], 1), "prompt 0 is empty"),
        (DecodeTask([[512]], 1), "outside the vocabulary of 512"),
        (DecodeTask([[-1]], 1), "outside the vocabulary"),
        (DecodeTask([[1]], 0), "generate = 0"),
        (DecodeTask([[1]], 2, teacher=[[1]]), "2 tokens are needed"),
        (DecodeTask([[1]] * 17, 1), "from 1 to 16"),
    ],
)
def test_bad_tasks_are_refused(task: DecodeTask, message: str) -> None:
    """One line, before anything is decoded."""
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        run_task(model_of(TINY), parse({}), task)


def test_the_environment_gives_what_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """T12: an explicit setting beats the variable."""
    monkeypatch.setenv("KVBENCH_DEPTH", "2")
    assert parse({}).depth == 2
    assert parse({"depth": 1}).depth == 1
    monkeypatch.setenv("KVBENCH_DEPTH", "two")
    with pytest.raises(SettingError, match="KVBENCH_DEPTH"):
        parse({})


def test_engine_calls_that_make_no_sense_are_refused() -> None:
    """Shifts, loads and growth beyond what there is."""
    with Engine(model_of(TINY), parse({"depth": 1}), 2, 64) as engine:
        engine.prefill(0, [1, 2, 3])
        with pytest.raises(UsageError, match="keep 1 and discard 5"):
            engine.shift(0, 1, 5)
        with pytest.raises(UsageError, match="do not fit"):
            engine.prefill(0, [1] * 64)
        with pytest.raises(UsageError, match="of its own"):
            engine.mixed({0: 1}, 0, [1])


def test_recurrent_states_do_not_go_back() -> None:
    """A hybrid model refuses a shift and a roll-back in words."""
    with Engine(model_of("synthetic:tiny-hybrid"), parse({}), 1, 32) as engine:
        engine.prefill(0, [1, 2, 3])
        for call in (lambda: engine.shift(0, 0, 1), lambda: engine.truncate(0, 1)):
            with pytest.raises(UsageError, match="cannot go back in time"):
                call()


def test_levels_tell_where_a_token_goes() -> None:
    """T21: ordered copies block and staged ones do not; a graph input blocks, by name."""
    model = model_of(TINY)
    level = {"telemetry": 3, "link_gb_s": 0.05}
    ordered = run_task(model, parse(level), TASK).result.telemetry["cpu0"]
    staged = run_task(model, parse({**level, "depth": 1}), TASK).result.telemetry["cpu0"]
    names = [c["name"] for c in ordered["blocking_copies"]]
    assert names[0] == "ordered" and ordered["means"][0]["blocked_copy_ms"] > 0
    assert "ordered" not in [c["name"] for c in staged["blocking_copies"]]
    fed = run_task(model, parse({**level, "depth": 1, "graph_input_kib": 256}), TASK).result
    costs = {c["name"]: c for c in fed.telemetry["cpu0"]["blocking_copies"]}
    assert costs["input"]["bytes"] == 256 << 10
    assert staged["stops"]["no next graph"] == 1
