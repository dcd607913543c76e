"""Gate: today's bytes are the bytes of an earlier build, on this machine's arithmetic.

The first run records the digests of all scenarios; later runs compare. Digests are kept by
arithmetic fingerprint (BLAS build, core type, kernel sources), since other arithmetic means
other bits: where there is no base for it, the gate says so instead of passing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from gates.registry import GateOptions
from gates.transport import checks
from gates.transport.harness import reference
from gates.transport.scenarios import Scenario
from kvbench import __version__
from kvbench.assets.cache import cache_root
from kvbench.decoder import arithmetic
from kvbench.errors import UsageError
from kvbench.records.gate import GateReport, Outcome


def run(options: GateOptions) -> GateReport:
    """Compare with the base, or record one: ``--settings base=FILE``, ``record=true``."""
    path = Path(str(options.settings.get("base", _default())))
    record = bool(options.settings.get("record", False))
    known = {} if record else _read(path)
    digests: dict[str, str] = {}

    def judge(scenario: Scenario) -> tuple[Outcome, str]:
        digests[scenario.name] = now = reference(scenario).digest
        if record:
            return "passed", f"recorded {now}"
        before = known.get(scenario.name)
        if before is None:
            return "not checked", f"no base in {path.name}; record one first"
        if before != now:
            return "mismatch", f"the base has {before}, this build gives {now}"
        return "passed", f"{now}, as recorded"

    report = checks.each("base", options, checks.chosen(options), judge)
    if record:
        _write(path, digests)
    return report


def _default() -> Path:
    return cache_root() / "base" / f"{arithmetic.fingerprint()}.json"


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(k): str(v) for k, v in content["digests"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"base {path}: not a file of recorded digests ({error})") from None


def _write(path: Path, digests: dict[str, str]) -> None:
    content = {"version": __version__, "arithmetic": arithmetic.fingerprint(), "digests": digests}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
