"""The decoder's equations written once more, plainly, in float64: an oracle, and slow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvbench.decoder.model import Model

F64 = NDArray[np.float64]


class NaiveDecoder:
    """One sequence. ``step(token)`` returns the float64 logits [V] after that token."""

    def __init__(self, model: Model) -> None:
        self.config = model.config
        self.w = {name: array.astype(np.float64) for name, array in model.weights.items()}
        self.keys: list[list[F64]] = [[] for _ in self.config.layer_kinds]
        self.values: list[list[F64]] = [[] for _ in self.config.layer_kinds]
        self.states = [np.zeros(self.config.d_model) for _ in self.config.layer_kinds]
        self.position = 0

    def step(self, token: int) -> F64:
        x = self.w["embed"][token].copy()
        for i, kind in enumerate(self.config.layer_kinds):
            normed = self._norm(x, self.w[f"{i}.attn_norm"])
            x += self._attend(i, normed) if kind == "attention" else self._recur(i, normed)
            normed = self._norm(x, self.w[f"{i}.ffn_norm"])
            gate, up = np.split(self.w[f"{i}.w_gate_up"] @ normed, 2)
            x += self.w[f"{i}.w_down"] @ (gate / (1 + np.exp(-gate)) * up)
        self.position += 1
        return self.w["head"] @ self._norm(x, self.w["final_norm"])

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        for token in prompt:
            logits = self.step(token)
        out = [int(np.argmax(logits))]
        while len(out) < n:
            out.append(int(np.argmax(self.step(out[-1]))))
        return out

    def _norm(self, x: F64, gain: F64) -> F64:
        return x / np.sqrt(np.mean(x * x) + self.config.rms_eps) * gain

    def _attend(self, i: int, x: F64) -> F64:
        c = self.config
        q, k, v = np.split(self.w[f"{i}.wqkv"] @ x, [c.q_width, c.q_width + c.kv_width])
        q = self._rotate(q.reshape(c.n_heads, c.head_dim))
        self.keys[i].append(self._rotate(k.reshape(c.n_kv_heads, c.head_dim)))
        self.values[i].append(v.reshape(c.n_kv_heads, c.head_dim))
        keys, values = np.stack(self.keys[i]), np.stack(self.values[i])
        heads = []
        for h in range(c.n_heads):
            g = h // (c.n_heads // c.n_kv_heads)
            scores = keys[:, g] @ q[h] / np.sqrt(c.head_dim)
            weights = np.exp(scores - scores.max())
            heads.append(weights @ values[:, g] / weights.sum())
        return self.w[f"{i}.wo"] @ np.concatenate(heads)

    def _recur(self, i: int, x: F64) -> F64:
        gate, new = np.split(self.w[f"{i}.w_rec"] @ x, 2)
        a = 1 / (1 + np.exp(-gate))
        self.states[i] = a * self.states[i] + (1 - a) * new
        return self.w[f"{i}.wo"] @ self.states[i]

    def _rotate(self, heads: F64) -> F64:
        c = self.config
        half = c.rope_dim // 2
        angles = self.position * np.array(c.inverse_frequencies())
        if c.rope_interleaved:
            first, second = slice(0, c.rope_dim, 2), slice(1, c.rope_dim, 2)
        else:
            first, second = slice(0, half), slice(half, c.rope_dim)
        out = heads.copy()
        a, b = heads[:, first], heads[:, second]
        out[:, first] = a * np.cos(angles) - b * np.sin(angles)
        out[:, second] = a * np.sin(angles) + b * np.cos(angles)
        return out
