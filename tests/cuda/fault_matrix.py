"""Every planted fault on a GPU: what objects to it, the output, the race check or the deliveries.

    python -m tests.cuda.fault_matrix

Each fault has a process of its own: one that frees memory in flight may take its context along.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from gates.transport import delivery
from gates.transport.harness import run
from gates.transport.scenarios import BY_NAME
from kvbench.decoder.faults import FAULTS, find
from kvbench.device.races import check
from kvbench.errors import KvbenchError

DELAYS = ("none", "slow_transfer", "slow_compute", "slow_store")
PROCESSES = 8


def detect(name: str) -> str:
    """The fault's line of the table."""
    fault = find(name)
    if fault.scenario not in BY_NAME:
        return f"| `{name}` | scenario {fault.scenario} is not of the transport | | |"
    scenario = BY_NAME[fault.scenario]
    plain = run(scenario, device="cuda", depth=0, graphs=False, devices=1, delays="none")
    differs, races, moved = [], False, False
    for delays in DELAYS:
        try:
            got = run(scenario, hooks=fault.hooks(), device="cuda", delays=delays, delay_ms=2.0)
        except KvbenchError as error:
            differs.append(f"{delays} ({error})")
            continue
        if got.error or got.digest != plain.digest:
            differs.append(delays)
        races = races or bool(check(got.log, limit=1))
        if scenario.name in delivery.STRICT:
            moved = moved or bool(delivery.verify(got.log, delivery.pitch_of(scenario))[0])
    return f"| `{name}` | {', '.join(differs)} | {'yes' * races} | {'yes' * moved} |"


def main() -> None:
    print("| fault | output differs under delays | race check | deliveries |\n|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    names = [fault.name for fault in FAULTS]
    for at in range(0, len(names), PROCESSES):
        pools = [ProcessPoolExecutor(1, context) for _ in names[at : at + PROCESSES]]
        jobs = [p.submit(detect, n) for p, n in zip(pools, names[at : at + PROCESSES], strict=True)]
        for name, job in zip(names[at : at + PROCESSES], jobs, strict=True):
            try:
                print(job.result(timeout=60), flush=True)
            except (BrokenProcessPool, TimeoutError) as error:
                print(f"| `{name}` | the process ended: {type(error).__name__} | | |", flush=True)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
