"""Issue 6, scale: the Dask executor against a real scheduler with several worker processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.records import RunLine, VoidLine, read_journal
from runner import ab
from runner.store import judge_again
from tests.runner.conftest import Told, write_suite

pytest.importorskip("distributed")
from runner.cluster import DaskExecutor

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of distributed and its event loops
]

ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """A scheduler and workers, each a process of its own, without nannies: the dead stay dead."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.place / f"{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *words],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self.processes.append(process)
        return process

    def start_scheduler(self) -> None:
        self.start("dask_scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1")
        log = self.place / "0.log"
        deadline = time.monotonic() + 60
        while not self.address and time.monotonic() < deadline:
            found = re.search(r"tcp://127\.0\.0\.1:\d+", log.read_text())
            self.address = found[0] if found else ""
            time.sleep(0.1)
        assert self.address, log.read_text()

    def start_worker(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start(
            "dask_worker",
            self.address,
            "--no-nanny",
            "--nthreads",
            "1",
            "--no-dashboard",
            *(words or ("--resources", "kvbench=1")),
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    place = tmp_path / "cluster"
    place.mkdir()
    cluster = Cluster(place)
    try:
        cluster.start_scheduler()
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            process.kill()
            process.wait()


def connect(cluster: Cluster, workers: int) -> DaskExecutor:
    """Wait until the workers are there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            executor = DaskExecutor(cluster.address)
        except UsageError:
            executor = None
        if executor is not None:
            if len(executor._workers()) == workers:
                return executor
            executor.__exit__()
        assert time.monotonic() < deadline, "the workers do not come"
        time.sleep(0.3)


GRID = "[grid]\nworkload.seed = [1, 2, 3, 4]\n"


def test_cells_are_spread_and_stay_where_they_are(
    cluster: Cluster, tmp_path: Path, told: Told
) -> None:
    for _ in range(2):
        cluster.start_worker()
    suite = write_suite(tmp_path, {"a": {}, "b": {}}, tables=GRID)
    with connect(cluster, 2) as executor:
        done = ab.start(suite, told.watch, root=tmp_path / "results", executor=executor)
    assert done.summary.exit_code == 0 and done.summary.finished is not None
    runs = [line for line in read_journal(done.directory).lines if isinstance(line, RunLine)]
    assert len(runs) == 32
    where: dict[str, set[str | None]] = {}
    for run in runs:
        where.setdefault(run.cell, set()).add(run.worker)
    assert all(len(workers) == 1 for workers in where.values())
    assert len({next(iter(workers)) for workers in where.values()}) == 2
    assert judge_again(done.directory) == done.summary


def test_a_block_of_a_killed_worker_is_run_again_from_its_start(
    cluster: Cluster, tmp_path: Path, told: Told
) -> None:
    words = ("--resources", "kvbench=1", "--name")
    workers = {name: cluster.start_worker(*words, name) for name in ("w0", "w1", "w2")}
    over = threading.Event()
    suite = write_suite(
        tmp_path, {"a": {"delay_s": 0.15}, "b": {"delay_s": 0.15}}, tables=GRID, generate=4
    )

    def kill_one_mid_block() -> None:
        """Whose first run of a block is in the journal has three more before it."""
        while not over.wait(0.02):
            for journal in (tmp_path / "results").glob("*/journal.jsonl"):
                for line in read_journal(journal).lines:
                    if isinstance(line, RunLine):
                        assert line.worker is not None
                        os.kill(workers[line.worker].pid, signal.SIGKILL)
                        return

    killer = threading.Thread(target=kill_one_mid_block)
    killer.start()
    try:
        with connect(cluster, 3) as executor:
            done = ab.start(suite, told.watch, root=tmp_path / "results", executor=executor)
    finally:
        over.set()
        killer.join()
    lines = read_journal(done.directory).lines
    voided = [line for line in lines if isinstance(line, VoidLine)]
    assert voided and all(line.reason.startswith("worker lost") for line in voided)
    for line in voided:
        again = [
            run
            for run in lines
            if isinstance(run, RunLine)
            and (run.cell, run.block, run.attempt) == (line.cell, line.block, line.attempt + 1)
        ]
        assert [run.position for run in again] == [0, 1, 2, 3]
        assert len({run.worker for run in again}) == 1
    assert done.summary.exit_code == 0
    assert all(sum(r.counted for r in cell.runs) == 8 for cell in done.summary.cells)
    assert judge_again(done.directory) == done.summary


def test_workers_that_take_no_blocks_are_named(cluster: Cluster) -> None:
    from distributed import Client

    cluster.start_worker("--name", "plain")
    with Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)
    with pytest.raises(UsageError, match="dask worker --nthreads 1 --resources kvbench=1"):
        DaskExecutor(cluster.address)


@pytest.mark.parametrize("address", ["", "nonsense", "tcp://host", "http://host:1", "tcp://a b:1"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(UsageError, match=r"--address: .* is not like tcp://host:8786"):
        DaskExecutor(address)


def test_no_scheduler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.cluster.CONNECT_S", 1.0)
    with pytest.raises(UsageError, match="no scheduler answers"):
        DaskExecutor("tcp://127.0.0.1:9")
