"""Stands between the harness and an arm's process tree, so that nothing can outlive either.

Run as a program of its own (``python -I -S guard.py LIFELINE_FD command ...``), standard library
only. The arm inherits stdin, stdout and stderr. The guard holds one end of a socket, the lifeline:
when its other end closes, because the harness asked or because it died in any way, or when the
arm itself exits, the guard kills everything that descends from it and says how the arm ended.

It is a child subreaper (Linux), so that a process which detached itself with a double fork is
still found. Elsewhere the arm's process group is what is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 2.0
"""Between SIGTERM to the arm's process group and SIGKILL to every descendant."""
REAP_S = 5.0
"""How long killed processes may take to go away before the guard gives up on them."""
NOT_STARTED = 127


def prctl(option: int, value: int) -> None:
    """Linux only, a no-op elsewhere; failure is not fatal (the lifeline still works)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def report(lifeline: int, facts: Mapping[str, object]) -> None:
    """One JSON line to the harness, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(lifeline, json.dumps(facts).encode() + b"\n")


def descendants(root: int) -> Iterator[int]:
    """Process ids below ``root``, zombies included, children before their own children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208  (start-up time)
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123  (start-up time)
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    pending = list(children.get(root, ()))
    while pending:
        pid = pending.pop()
        yield pid
        pending.extend(children.get(pid, ()))


def start(command: list[str], report_fd: int) -> int:
    """Fork and exec ``command`` in a session of its own; the child's process id."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(NOT_STARTED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        report(report_fd, {"error": f"{command[0]}: {error.strerror}"})
        os._exit(NOT_STARTED)


class Tree:
    """The arm and everything below it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.usage: tuple[float, int] = (0.0, 0)

    def reap(self) -> None:
        """Collect whatever has exited; remembers how the arm itself ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self.status = os.waitstatus_to_exitcode(status)
                    self.usage = (usage.ru_utime + usage.ru_stime, usage.ru_maxrss)

    def terminate(self) -> None:
        """Ask the arm's process group to stop."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> int:
        """Kill every descendant until none is left; how many were still there."""
        found: set[int] = set()
        deadline = time.monotonic() + REAP_S
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            alive = set(descendants(os.getpid()))
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            found |= alive - {self.pid}
            self.reap()
            if not alive and self.status is not None:
                return len(found)
            if time.monotonic() > deadline:
                return len(found)
            time.sleep(0.005)


def watch(tree: Tree, lifeline: int, wakeup: int) -> None:
    """Return once the arm has exited or the harness has let go and the grace period is over."""
    deadline: float | None = None
    while tree.status is None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return
        watched = [wakeup] if deadline is not None else [wakeup, lifeline]
        ready, _, _ = select.select(watched, [], [], left)
        if wakeup in ready:
            os.read(wakeup, 4096)
            tree.reap()
        if lifeline in ready and not hear(lifeline):
            tree.terminate()
            deadline = time.monotonic() + GRACE_S


def hear(lifeline: int) -> bytes:
    """What the harness says; nothing once it is gone, however it went."""
    try:
        return os.read(lifeline, 1)
    except OSError:
        return b""


def main(argv: list[str]) -> int:
    """``argv``: the lifeline's file descriptor, then the arm's command line."""
    lifeline, command = int(argv[0]), argv[1:]
    os.set_inheritable(lifeline, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A default disposition again in the arm: exec keeps "ignored", handlers are reset.
        signal.signal(ignored, lambda *_: None)
    tree = Tree(start(command, lifeline))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    watch(tree, lifeline, wakeup)
    leftover = tree.kill()
    ended = {
        "exit": tree.status,
        "leftover": leftover,
        "cpu_s": tree.usage[0],
        "max_rss_kib": tree.usage[1],
    }
    report(lifeline, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
