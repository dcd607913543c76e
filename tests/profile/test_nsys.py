"""Issue: a user's own nsys export is read by its documented tables; absent is not zero."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kvbench.analysis import nsys
from kvbench.analysis.nsys import read_nsys
from kvbench.analysis.profile import overlap, range_sums
from kvbench.errors import UsageError
from tests.profile.exports import SCHEMA, Export


def full(path: Path) -> Export:
    export = Export(path)
    export.calls(1, 3)
    export.add(nsys.KERNEL, (100, 300, 0, 1, 7, 9, 0, 4, 4, 55), (400, 600, 0, 1, 7, 9, 0, 4, 4))
    export.add(
        nsys.MEMCPY,
        (200, 350, 0, 1, 14, 9, 0, 4096, 1, 0, 0, 56),
        (360, 380, 0, 1, 14, 9, 0, 128, 2),
        (390, 395, 0, 1, 14, 9, 0, 128, 77),
    )
    export.tokens(2)
    return export


def test_every_table_is_read(tmp_path: Path) -> None:
    capture = read_nsys(full(tmp_path / "elided.sqlite").save())
    assert capture.arm == "elided"
    assert capture.tool == "nsys export schema 3.11.0"
    assert capture.tokens == 2
    assert [call.name for call in capture.api] == ["cudaStreamSynchronize"] * 3
    assert capture.api[0].thread == 42
    kernels = [w for w in capture.work if w.kind == "kernel"]
    assert [(k.label, k.start, k.end, k.graph) for k in kernels] == [
        ("attend", 100, 300, True), ("attend", 400, 600, False),
    ]  # fmt: skip
    copies = [w for w in capture.work if w.kind == "copy"]
    assert [(c.direction, c.nbytes) for c in copies] == [
        ("host_to_device", 4096), ("device_to_host", 128), ("kind 77", 128),
    ]  # fmt: skip
    assert copies[0].queue == "GPU 0 stream 14"
    assert overlap(capture).both == 100
    assert [(r.name, r.count, r.ns) for r in range_sums(capture)] == [("token", 2, 200_000)]
    assert set(capture.absent) == {"memsets"}


def test_ranges_carry_their_own_text_and_marks_are_no_ranges(tmp_path: Path) -> None:
    export = full(tmp_path / "a.sqlite")
    export.add(
        "NVTX_EVENTS", (5, 9, 60, None, None, None, "mine", 42), (6, None, 34), (7, None, 59)
    )
    names = [r.name for r in read_nsys(export.save()).ranges]
    assert sorted(names) == ["mine", "token", "token"]


def test_absent_tables_are_named_not_counted_as_zero(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.calls(1, 3)
    capture = read_nsys(export.save())
    assert len(capture.api) == 3
    assert capture.absent["copies"] == (
        "no table CUPTI_ACTIVITY_KIND_MEMCPY: not traced, or none happened"
    )
    assert capture.tokens is None


@pytest.mark.parametrize(
    ("table", "column", "what"),
    [
        (nsys.RUNTIME, "nameId", "api"),
        (nsys.MEMCPY, "copyKind", "copies"),
        (nsys.KERNEL, "end", "kernels"),
        (nsys.NVTX, "eventType", "ranges"),
    ],
)
def test_a_missing_column_costs_that_table_alone(
    tmp_path: Path, table: str, column: str, what: str
) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.add(table, (1,), drop=column)
    for other, row in ((nsys.RUNTIME, (0, 5, 0, 42, 1, 1)), (nsys.KERNEL, (0, 5, 0, 1, 7))):
        if other != table:
            export.add(other, row)
    capture = read_nsys(export.save())
    assert capture.absent[what] == f"table {table} has no column {column}"
    assert capture.api or capture.work


def test_a_value_of_the_wrong_type_costs_that_table_alone(tmp_path: Path) -> None:
    export = full(tmp_path / "a.sqlite")
    export.add(nsys.KERNEL, ("soon", "later"))
    capture = read_nsys(export.save())
    assert "holds a value that cannot be read" in capture.absent["kernels"]
    assert len(capture.api) == 3


def test_graphs_traced_as_wholes_are_said_to_be(tmp_path: Path) -> None:
    export = full(tmp_path / "a.sqlite")
    export.add(nsys.GRAPHS, (700, 900, 0, 7, 1))
    capture = read_nsys(export.save())
    assert "--cuda-graph-trace=node" in capture.absent["graph nodes"]
    assert overlap(capture).compute == 400, "a whole graph is not counted as kernels"


def test_tokens_given_by_the_user_win(tmp_path: Path) -> None:
    assert read_nsys(full(tmp_path / "a.sqlite").save(), token_count=9).tokens == 9


def test_files_that_are_no_export_are_refused_in_one_line(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            read_nsys(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "cannot read" in refusal(tmp_path / "missing.sqlite")
    text = tmp_path / "a.nsys-rep"
    text.write_bytes(b"NSYS")
    assert "not a sqlite file; export it first: nsys export --type sqlite" in refusal(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE recipes (name TEXT)")
    file.close()
    assert "no table StringIds(id, value); tables there: recipes" in refusal(other)
    hollow = Export(tmp_path / "hollow.sqlite").save()
    assert "nothing in it can be read: api: no table" in refusal(hollow)
    damaged = tmp_path / "damaged.sqlite"
    whole = full(tmp_path / "whole.sqlite").save().read_bytes()
    damaged.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    assert "damaged sqlite file" in refusal(damaged)


def test_the_export_of_the_tests_has_the_documented_columns() -> None:
    assert {"start", "end", "globalTid", "correlationId", "nameId"} <= {
        c.split()[0] for c in SCHEMA[nsys.RUNTIME].split(", ")
    }
