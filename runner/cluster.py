"""The Dask executor (extra ``cluster``): blocks on the workers of a running scheduler.

A block never leaves the worker it started on, a cell stays on its worker while that lives, and a
worker runs one block at a time: it is started with ``--resources kvbench=1`` (docs/CI.md, and
docs/METHODOLOGY.md for what may differ between workers).
"""

from __future__ import annotations

import importlib.util
import queue
import re
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from kvbench.environment import fingerprint
from kvbench.errors import ArmFailure, UsageError
from kvbench.records import RunLine
from runner.block import BlockJob, Emit, run_block

T = TypeVar("T")
RESOURCE = "kvbench"
ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")
POLL_S = 0.2
CONNECT_S = 20.0
PRESENCE_S = 1.0
"""How often the scheduler is asked which workers live."""


class Stopped(Exception):
    """Raised on a worker between two runs, because the experiment was stopped."""


def run_remotely(job: BlockJob, topic: str, stop: str) -> None:
    """On the worker: run the block and send each run's line as it is finished."""
    from distributed import Event, get_worker

    worker = get_worker()
    token = secrets.token_hex(8)
    gone = Event(stop)

    def emit(line: RunLine, environment: dict[str, Any]) -> None:
        worker.log_event(topic, _message(job, token, line, environment))

    def doing(_: str) -> None:
        if gone.is_set():
            raise Stopped

    job = msgspec.structs.replace(job, worker=str(worker.name))
    run_block(job, fingerprint(), emit, doing)
    worker.log_event(topic, _message(job, token, None, {}))


def _message(
    job: BlockJob, token: str, line: RunLine | None, environment: dict[str, Any]
) -> dict[str, Any]:
    """Plain data; ``line`` None: the block is over."""
    data = None if line is None else msgspec.json.encode(line).decode()
    return {
        "cell": job.cell,
        "block": job.block,
        "attempt": job.attempt,
        "token": token,
        "line": data,
        "environment": environment,
    }


class DaskExecutor:
    """See ``runner.local.Executor``. Use as a context manager: leaving it stops what still runs."""

    def __init__(self, address: str) -> None:
        """Connect to ``address`` (``tcp://host:8786``). Raises ``UsageError``."""
        if importlib.util.find_spec("distributed") is None:
            raise UsageError("--executor dask needs the extra: pip install 'kvbench[cluster]'")
        if not ADDRESS.fullmatch(address):
            raise UsageError(
                f"--address: {address!r} is not like tcp://host:8786 or tls://host:8786"
            )
        from distributed import Client

        try:
            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"--address: {address}: no scheduler answers: {error}") from error
        self._topic = f"kvbench-{secrets.token_hex(8)}"
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cell_workers: dict[str, str] = {}
        self._client.subscribe_topic(self._topic, lambda event: self._messages.put(event[1]))
        try:
            self._require_workers()
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> DaskExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        from distributed import Event

        Event(self._topic, client=self._client).set()
        self._client.close()

    def _workers(self) -> list[str]:
        """Addresses of the workers that take blocks."""
        # n_workers=-1: all of them; newer versions list only some by default.
        info = self._client.scheduler_info(n_workers=-1)["workers"]
        return [a for a, facts in info.items() if facts.get("resources", {}).get(RESOURCE)]

    def _require_workers(self) -> list[str]:
        workers = self._workers()
        if not workers:
            raise UsageError(
                "the scheduler has no worker that takes blocks; start each with "
                f"dask worker --nthreads 1 --resources {RESOURCE}=1"
            )
        return workers

    def _worker_of(self, cell: str, workers: list[str]) -> str:
        """The cell's own worker; a new one, with the fewest cells, if that is gone."""
        if self._cell_workers.get(cell) not in workers:
            cells = list(self._cell_workers.values())
            self._cell_workers[cell] = min(workers, key=cells.count)
        return self._cell_workers[cell]

    def call(self, cell: str, function: Callable[..., T], *arguments: Any) -> T:
        """Run on the cell's worker; raises what ``function`` raises, ``ArmFailure`` if it dies."""
        from distributed import CancelledError, KilledWorker

        worker = self._worker_of(cell, self._require_workers())
        future = self._submit(worker, function, *arguments)
        while not future.done():
            time.sleep(POLL_S)
            if worker not in self._workers():
                future.cancel()
                raise ArmFailure(f"cell {cell}: its worker {worker} was lost; go on with --resume")
        try:
            found: T = future.result()
        except (KilledWorker, CancelledError) as error:
            raise ArmFailure(f"cell {cell}: its worker {worker} was lost: {error}") from error
        return found

    def _submit(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(
            function,
            *arguments,
            workers=[worker],
            allow_other_workers=False,
            resources={RESOURCE: 1},
            retries=0,
            pure=False,
        )

    def run(
        self, jobs: Iterable[BlockJob], emit: Emit, doing: Callable[[str], None]
    ) -> list[tuple[BlockJob, str]]:
        """See ``Executor``: all jobs at once, as many in parallel as there are workers."""
        batch = _Batch(self._topic)
        workers = self._require_workers()
        for job in jobs:
            worker = self._worker_of(job.cell, workers)
            batch.add(job, worker, self._submit(worker, run_remotely, job, *[self._topic] * 2))
        doing(f"{len(batch.open)} blocks on {len(workers)} workers")
        asked = time.monotonic()
        while batch.open:
            try:
                batch.take(self._messages.get(timeout=POLL_S), emit)
            except queue.Empty:
                batch.fail_finished()
            if time.monotonic() - asked > PRESENCE_S:
                asked = time.monotonic()
                alive = self._workers()
                while not self._messages.empty():  # what a lost worker finished still counts
                    batch.take(self._messages.get(), emit)
                batch.lose_all_but(alive)
        return batch.lost


class _Batch:
    """The blocks under way, and which of their messages have been taken."""

    def __init__(self, topic: str) -> None:
        self.open: dict[tuple[str, int, int], tuple[BlockJob, str, Any]] = {}
        self.lost: list[tuple[BlockJob, str]] = []
        self._tokens: dict[tuple[str, int, int], str] = {}

    def add(self, job: BlockJob, worker: str, future: Any) -> None:
        """``future`` runs ``job`` on ``worker``."""
        self.open[job.cell, job.block, job.attempt] = (job, worker, future)

    def take(self, message: dict[str, Any], emit: Emit) -> None:
        """One message of a worker; those of a block that was given up are ignored."""
        key = (message["cell"], message["block"], message["attempt"])
        if key not in self.open:
            return
        if self._tokens.setdefault(key, message["token"]) != message["token"]:
            self._lose(key, "worker lost: the scheduler started its block again by itself")
            return
        if message["line"] is None:
            del self.open[key]
            return
        emit(msgspec.json.decode(message["line"], type=RunLine), message["environment"])

    def fail_finished(self) -> None:
        """A task that ended with an error: raise what is meant for the user, else it is lost."""
        from distributed import CancelledError, KilledWorker

        for key, (_, worker, future) in list(self.open.items()):
            if future.status in ("error", "cancelled", "lost"):
                error = future.exception() if future.status == "error" else CancelledError()
                if error is not None and not isinstance(error, KilledWorker | CancelledError):
                    raise error
                self._lose(key, f"worker lost: {worker}")

    def lose_all_but(self, workers: list[str]) -> None:
        """Give up the blocks whose worker is gone."""
        for key, (_, worker, _) in list(self.open.items()):
            if worker not in workers:
                self._lose(key, f"worker lost: {worker}")

    def _lose(self, key: tuple[str, int, int], reason: str) -> None:
        job, _, future = self.open.pop(key)
        future.cancel()
        self.lost.append((job, reason))
