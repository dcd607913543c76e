"""Small decodes in this process, under the schedule explorer, and what may be planted into them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gates.registry import GateOptions
from kvbench.decoder.faults import DelayHooks
from kvbench.decoder.model import Model, open_model
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.decoder.waits import SITES
from kvbench.device.failed_designs import CONTEXTS
from kvbench.errors import SettingError, UsageError

MODEL = "synthetic:tiny,layers=4,shallow=2,agree=60"
SHALLOW = "layers:2"
GENERATE, WARMUP = 12, 2
WAITS = (*(site.name for site in SITES), "read")
"""Where ``elided_at`` can leave a wait out; ``read`` is quiet's."""


class Elided(DelayHooks):
    """Leaves out the host's wait at one site, mark or no mark."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site, self.met = site, False

    def keep_sync(self, queue: str, site: str) -> bool:
        """All but the one."""
        self.met = self.met or site == self.site
        return site != self.site


@dataclass(frozen=True, slots=True)
class Planted:
    """What ``--set`` put into all arms, and ``--inject`` into those under test."""

    common: dict[str, Any]
    settings: dict[str, Any]
    site: str = ""
    hooked: list[Elided] = field(default_factory=list)

    def hooks(self) -> DelayHooks | None:
        """Fresh hooks for a run; None where the settings say all."""
        if not self.site:
            return None
        self.hooked.append(Elided(self.site))
        return self.hooked[-1]

    def require_met(self) -> None:
        """Raise SettingError if no run came by the site: nothing was left out, nothing is shown."""
        if self.site and not any(hooks.met for hooks in self.hooked):
            allowed = "a wait that these runs make (upload.cells: with --set unified=true)"
            raise SettingError("elided_at", self.site, allowed, "--inject")


def planted(options: GateOptions) -> Planted:
    """``mark=DESIGN``, ``elided_at=SITE``, or the name of a fault of the catalogue."""
    settings: dict[str, Any] = {}
    site = ""
    for item in options.inject:
        name, _, value = item.partition("=")
        if name == "mark":
            if value not in CONTEXTS:
                raise SettingError("mark", value, "one of " + ", ".join(CONTEXTS), "--inject")
            settings["mark"] = value
        elif name == "elided_at":
            if value not in WAITS:
                raise SettingError("elided_at", value, "one of " + ", ".join(WAITS), "--inject")
            site = value
        else:
            settings["faults"] = [*settings.get("faults", ()), item]
    return Planted(dict(options.settings), settings, site)


def prompts(sequences: int) -> list[list[int]]:
    """Texts that repeat themselves (prompt lookup finds some), different in every sequence."""
    return [[(7 * i + 3 * s) % 50 + s for i in range(30)] * 2 for s in range(sequences)]


def decode(
    model: str,
    sequences: int,
    *,
    hooks: DelayHooks | None = None,
    generate: int = GENERATE,
    **settings: Any,
) -> DecodeRun:
    """One recorded run with audit sums; on the cpu device the explorer orders the work."""
    chosen = {"record": True, "audit": True, "explore": 1, **settings}
    if chosen.get("device", "cpu") != "cpu":
        del chosen["explore"]
    task = DecodeTask(prompts(sequences), generate, WARMUP, snapshots=False)
    return run_task(_model(model), parse(chosen), task, hooks=hooks)


@cache
def _model(ref: str) -> Model:
    model = open_model(ref)
    if "recurrent" in model.config.layer_kinds:
        raise UsageError(f"model {ref}: these gates roll rows back; recurrent layers cannot")
    return model
