"""What load to put on a server: pure data."""

from __future__ import annotations

import random
from typing import Annotated

import msgspec
from msgspec import Meta

from kvbench.errors import SettingError

Positive = Annotated[float, Meta(gt=0)]


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request must meet to count as goodput; milliseconds, None: no limit."""

    ttft_ms: Positive | None = None
    itl_ms: Positive | None = None
    """Mean time between a request's tokens."""
    e2e_ms: Positive | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """``ttft=200,itl=50,e2e=3000``. Raises SettingError."""
        limits: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if f"{name}_ms" not in cls.__struct_fields__:
                raise SettingError("slo", text, "ttft=MS, itl=MS, e2e=MS, with commas", "option")
            try:
                limits[f"{name}_ms"] = float(value)
            except ValueError:
                raise SettingError("slo", text, "a number of milliseconds", "option") from None
        try:
            return msgspec.convert(limits, cls)
        except msgspec.ValidationError as error:
            raise SettingError("slo", text, f"positive limits ({error})", "option") from None

    def describe(self) -> str:
        """``ttft ≤ 200 ms, itl ≤ 50 ms``; empty without limits."""
        limits = [(n, getattr(self, n)) for n in self.__struct_fields__]
        return ", ".join(f"{n[:-3]} ≤ {v:g} ms" for n, v in limits if v is not None)


class LoadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One point of a sweep. Exactly one of ``rate`` and ``concurrency``."""

    requests: Annotated[int, Meta(ge=1, le=1_000_000)]
    generate: Annotated[int, Meta(ge=2, le=1_000_000)] = 128
    rate: Positive | None = None
    """Open loop: requests a second, arrivals exponential and seeded, whatever the server does."""
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Closed loop: so many clients, each asking again when it has its answer."""
    timeout_s: Positive = 120.0
    seed: int = 1
    slo: Slo = Slo()

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise SettingError("rate", self.rate, "exactly one of rate and concurrency", "load")

    @property
    def name(self) -> str:
        """``open 200/s`` or ``closed 8``."""
        if self.rate is not None:
            return f"open {self.rate:g}/s"
        return f"closed {self.concurrency}"

    def arrivals(self) -> list[float]:
        """Open loop: seconds from the start at which each request is due."""
        assert self.rate is not None
        chance = random.Random(self.seed)
        due, times = 0.0, []
        for _ in range(self.requests):
            times.append(due)
            due += chance.expovariate(self.rate)
        return times
