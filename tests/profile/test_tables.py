"""Issue: calls per API and token, order diff, overlap, gaps, slots, traces and the timeline."""

from __future__ import annotations

import csv
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis import intervals
from kvbench.analysis.nsys import read_nsys
from kvbench.analysis.profile import call_table, longest_gaps, order_diff, overlap, token_calls
from kvbench.analysis.slots import occupied
from kvbench.bundled import published_dir
from kvbench.device.capture import capture as capture_of
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op
from kvbench.errors import UsageError
from kvbench.records.capture import (
    ApiCall,
    Capture,
    NamedRange,
    Work,
    decode_capture,
    encode_capture,
)
from kvbench.report.timeline import STYLE, draw
from kvbench.report.trace import render_trace
from tests.profile import exports
from tests.report.samples import HOSTILE

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def make(arm: str = "a", **fields: object) -> Capture:
    return Capture(v=1, arm=arm, source="oplog", tool="test", tokens=1, **fields)  # type: ignore[arg-type]


def kernel(start: int, end: int, **fields: object) -> Work:
    return Work("kernel", "compute", f"k{start}", start, end, **fields)  # type: ignore[arg-type]


def copy(start: int, end: int, **fields: object) -> Work:
    direction = "host_to_device"
    return Work(
        "copy", "transfer", f"c{start}", start, end, direction=direction, **fields  # type: ignore[arg-type]
    )  # fmt: skip


@given(spans, spans)
def test_interval_arithmetic_agrees_with_sets_of_points(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    points = [{p for s, e in each for p in range(s, e)} for each in (a, b)]
    unions = [intervals.union(each) for each in (a, b)]
    for union, expected in zip(unions, points, strict=True):
        assert intervals.total(union) == len(expected)
        assert all(x[1] < y[0] for x, y in itertools.pairwise(union))
    both = intervals.intersection(*unions)
    assert {p for s, e in both for p in range(s, e)} == points[0] & points[1]


def test_the_origins_table_is_reproduced_from_two_exports(tmp_path: Path) -> None:
    """S5: only the count of synchronize calls falls."""
    with (published_dir() / "sync_elision.csv").open() as file:
        rows = {r["metric"]: r for r in csv.DictReader(file) if r["workload"].startswith("capture")}
    counts = {
        arm: [int(rows[api][arm]) for api in
              ("cudaStreamSynchronize", "cudaGraphLaunch", "cudaMemcpyAsync")]
        for arm in ("stock", "elided")
    }  # fmt: skip
    captures = [
        read_nsys(exports.origin(tmp_path / f"{arm}.sqlite", *numbers), arm)
        for arm, numbers in counts.items()
    ]
    table = {row.name: row for row in call_table(captures)}
    assert table["cudaStreamSynchronize"].arms["stock"].calls == 36_199
    assert round(table["cudaStreamSynchronize"].change("elided", "stock") or 0, 1) == -65.8
    assert table["cudaGraphLaunch"].change("elided", "stock") == 0
    assert table["cudaMemcpyAsync"].change("elided", "stock") == 0


def test_change_from_zero_calls_is_not_a_number() -> None:
    (row,) = call_table([make("a"), make("b", api=(ApiCall("x", 0, 1),))])
    assert row.change("b", "a") is None
    assert row.arms["a"].calls == 0


def test_overlap_counts_time_once_however_many_queues_are_busy() -> None:
    found = overlap(make(work=(kernel(0, 10), kernel(5, 20), copy(8, 12), copy(10, 30))))
    assert (found.compute, found.copy, found.both, found.wall) == (20, 22, 12, 30)
    assert found.possible == 12 / 20
    assert overlap(make()).fraction is None


def test_gaps_name_what_was_waited_for() -> None:
    """An awaited copy, a blocking call, or nothing that was recorded."""
    work = (
        kernel(0, 10),
        copy(2, 48),
        kernel(50, 60, after=(1,)),
        kernel(90, 95),
        kernel(200, 210),
    )
    sync = ApiCall("cudaStreamSynchronize", 60, 88, site="sample")
    gaps = longest_gaps(make(work=work, api=(sync,)))
    assert [(g.ns, g.cause) for g in gaps] == [
        (105, "the host, between its calls"),
        (40, "c2 on transfer"),
        (30, "the host, in cudaStreamSynchronize at sample"),
    ]


def test_order_diff_shows_what_one_token_does_differently() -> None:
    token = (NamedRange("token", 0, 100),)
    before = [
        ApiCall("cudaSetDevice", 0, 0),
        ApiCall("copy", 1, 1),
        ApiCall("launch", 2, 2),
        ApiCall("launch", 3, 3),
    ]
    after = [ApiCall("wait", 1, 1, "ready"), ApiCall("launch", 2, 2), ApiCall("launch", 3, 3)]
    a, b = make("a", api=tuple(before), ranges=token), make("b", api=tuple(after), ranges=token)
    diff = order_diff(a, b)
    assert diff is not None
    assert diff.lines == ["- copy", "+ wait (ready)", "  launch × 2"]
    same = order_diff(a, a)
    assert same is not None and same.same
    assert order_diff(make(api=tuple(before)), b) is None
    assert token_calls(make(api=tuple(before))) is None


def test_order_diff_writes_repeated_layers_once() -> None:
    token = (NamedRange("token", 0, 1000),)
    layer = ["copy", "launch", "mlp"]
    names = ["embed", *layer * 5, "head"]
    before = tuple(ApiCall(name, i, i) for i, name in enumerate(names))
    after = tuple(ApiCall(name.replace("copy", "wait"), i, i) for i, name in enumerate(names))
    diff = order_diff(make("a", api=before, ranges=token), make("b", api=after, ranges=token))
    assert diff is not None
    assert diff.lines == [
        "  embed", "  [5 times:", "- copy", "+ wait", "  launch", "  mlp", "  ]", "  head",
    ]  # fmt: skip


def test_a_slot_is_in_use_from_its_delivery_to_its_last_reader() -> None:
    work = (
        copy(0, 5, slot=0, split=0),
        copy(5, 9, slot=1, split=1),
        kernel(6, 12, slot=0, split=0),
        kernel(12, 15, slot=1, split=1),
        copy(20, 25, slot=0, split=0),
        copy(26, 27, slot=0, split=0),
        copy(30, 31, slot=1, split=4),
    )
    uses = [(u.slot, u.split, u.start, u.end) for u in occupied(make(work=work))]
    assert uses == [(0, 0, 0, 12), (1, 1, 5, 15), (0, 0, 20, 27), (1, 4, 30, 31)]


def logged(*, graphs: bool = False) -> Capture:
    """Two tokens on the real cpu device: a delivery on one queue, its consumer on another."""
    log = OpLog()
    with ThreadDevice(log=log) as device:
        compute, transfer = device.queue("compute"), device.queue("transfer")
        host, ring = device.alloc("host", 512, "host"), device.alloc("ring", 512)
        ready = device.event("ready")

        def token() -> None:
            device.copy(transfer, ring.span(), host.span(), site="early", split=0, slot=0)
            device.record(transfer, ready)
            device.wait(compute, ready, "ready")
            device.submit(compute, Op("kernel", "attend", lambda _: None, slot=0, split=0))

        for _ in range(2):
            log.mark("token")
            token()
            device.synchronize(compute, "sample")
        return capture_of(log, "pipelined", tool="test", waits=device.context.waits())


def test_the_op_log_of_a_real_device_becomes_a_capture() -> None:
    capture = logged()
    counts = {row.name: row.arms["pipelined"].calls for row in call_table([capture])}
    assert counts == {
        "cudaMemcpyAsync": 2, "cudaEventRecord": 2, "cudaStreamWaitEvent": 2,
        "cudaLaunchKernel": 2, "cudaStreamSynchronize": 2,
    }  # fmt: skip
    assert capture.tokens == 2
    assert capture.waits == {"sample": (2, 0, 0)}
    attends = [w for w in capture.work if w.kind == "kernel"]
    assert [capture.work[i].site for w in attends for i in w.after] == ["early", "early"]
    assert all(w.end >= w.start > 0 for w in capture.work)
    syncs = [c for c in capture.api if c.name == "cudaStreamSynchronize"]
    assert all(c.end > c.start and c.site == "sample" for c in syncs)
    assert capture.absent == {"API times": "the op log times waits only"}


def test_captures_survive_their_file_and_others_are_refused() -> None:
    capture = logged()
    assert decode_capture(encode_capture(capture), "x") == capture
    for data in (b"{}", b"\xff", encode_capture(capture).replace(b'"v":1', b'"v":2', 1)):
        with pytest.raises(UsageError, match=r"^file\.json: "):
            decode_capture(data, "file.json")


def test_trace_has_tracks_counters_and_flows_from_delivery_to_consumer() -> None:
    events = json.loads(render_trace([logged(), logged()]))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"cpu0/compute", "cpu0/transfer", "host: API calls"} <= names
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    flows = {e["id"]: [f for f in events if f.get("id") == e["id"]] for e in events if "id" in e}
    assert len(flows) == 4
    for begin, end in flows.values():
        assert (begin["ph"], end["ph"]) == ("s", "f")
        assert begin["ts"] <= end["ts"]
        assert threads[begin["pid"], begin["tid"]].endswith("transfer")
        assert threads[end["pid"], end["tid"]].endswith("compute")
    filled = [e["args"]["slots"] for e in events if e["ph"] == "C" and e["pid"] == 1]
    assert filled == [1, 0, 1, 0]
    assert min(e["ts"] for e in events if "ts" in e) >= 0


def test_timeline_puts_arms_on_one_scale_and_names_their_tokens() -> None:
    tokens = tuple(NamedRange("token", i * 100, (i + 1) * 100) for i in range(4))
    slow = make("ordered", work=(copy(205, 250), kernel(250, 390)), ranges=tokens)
    fast = make(
        "pipelined", work=(copy(105, 150), kernel(110, 160)),
        ranges=tuple(NamedRange("token", i * 50, (i + 1) * 50) for i in range(4)),
    )  # fmt: skip
    picture = draw([slow, fast], style=STYLE)
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == "Timeline of 2 tokens: ordered above pipelined"
    assert "ordered: 2 tokens in 0.0002000 ms" in picture
    widths = [float(w) for w in re.findall(r'class="shade"[^>]* width="([\d.]+)"', picture)]
    assert widths[0] == 2 * widths[-1]
    assert draw([make()]) == ""


def test_timeline_of_a_graph_on_many_streams_has_a_lane_a_kind() -> None:
    work = [Work("kernel", f"GPU 0 stream {i}", "k", 10 * i, 10 * i + 8) for i in range(9)]
    work += [Work("copy", f"GPU 0 stream {i}", "c", 10 * i, 10 * i + 4) for i in range(9)]
    picture = draw([make(work=tuple(work))])
    assert picture.count('class="shade"') == 2
    assert "kernels" in picture and "copies" in picture and "stream" not in picture


def test_hostile_names_stay_text_in_pictures_and_traces() -> None:
    evil = make(HOSTILE, work=(Work("kernel", HOSTILE, HOSTILE, 0, 10),))
    ElementTree.fromstring(draw([evil]))
    assert json.loads(render_trace([evil]))
