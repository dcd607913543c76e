"""How often a shallow copy chooses the token of the whole model, and how to draw one that does.

The rate is measured teacher-forced: the copy is fed the whole model's own greedy tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench.decoder.draft import shallow
from kvbench.decoder.engine import Engine
from kvbench.decoder.model import Model, open_model
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.kernels import MAX_DECODE_ROWS

PROMPT_TOKENS = 16


def agreement(model: Model, layers: int, tokens: int) -> float:
    """Share of ``tokens`` greedy tokens that the first ``layers`` layers alone choose too."""
    return agreement_of(model, shallow(model, layers), tokens)


def agreement_of(model: Model, draft: Model, tokens: int, seed: int = 1) -> float:
    """The same for any draft; ``tokens`` are spread over 16 seeded prompts."""
    chance = np.random.Generator(np.random.Philox(seed))
    shape = (MAX_DECODE_ROWS, PROMPT_TOKENS)
    prompts = chance.integers(0, model.config.vocab_size, shape).tolist()
    each = -(-tokens // MAX_DECODE_ROWS)
    own = _decode(model, prompts, each, None)
    other = _decode(draft, prompts, each, own)
    return float(np.mean(np.asarray(own) == np.asarray(other)))


def scale_for(ref: str, layers: int, percent: int, tokens: int = 4096) -> int:
    """The ``later`` (thousandths) at which the first ``layers`` layers of the synthetic model
    ``ref`` agree at ``percent``: by halving, since agreement falls as the later layers add more."""
    low, high = 0, 1000
    while high - low > 8:
        middle = (low + high) // 2
        drawn = open_model(f"{ref},shallow={layers},later={max(middle, 1)}")
        if agreement(drawn, layers, tokens) * 100 > percent:
            low = middle
        else:
            high = middle
    return (low + high) // 2


def _decode(
    model: Model,
    prompts: Sequence[Sequence[int]],
    n: int,
    teacher: Sequence[Sequence[int]] | None,
) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in prompts]

    def keep(step: StepOutput) -> None:
        for row, token in zip(tokens, step.tokens, strict=True):
            row.append(int(token))

    settings = DecoderSettings(resident=True)
    with Engine(model, settings, len(prompts), PROMPT_TOKENS + n) as engine:
        for s, prompt in enumerate(prompts):
            engine.prefill(s, prompt[:-1])
        forced = None if teacher is None else dict(enumerate(teacher))
        engine.generate({s: p[-1] for s, p in enumerate(prompts)}, n, keep, teacher=forced)
    return tokens
