"""Student's t and Fisher's F, from the regularised incomplete beta function.

Written out because nothing else of scipy is needed here; tests hold it to scipy at 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_TINY = 1e-300


def beta_regularised(a: float, b: float, x: float) -> float:
    """I_x(a, b) for a, b > 0 and 0 <= x <= 1, by its continued fraction (Lentz's evaluation)."""
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        raise ValueError(f"I_x(a, b) needs a, b > 0 and 0 <= x <= 1, not {a}, {b}, {x}")
    if x in (0, 1):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_regularised(b, a, 1 - x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 4e-16:
            return value
    raise ArithmeticError(f"the continued fraction of I_{x}({a}, {b}) does not converge")


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_tail(t: float, df: float) -> float:
    """P(T > t) for Student's t with ``df`` degrees of freedom."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    if t * t < df:  # the middle, where the tail's own formula cancels
        middle = beta_regularised(0.5, df / 2, t * t / (df + t * t)) / 2
        return 0.5 - middle if t >= 0 else 0.5 + middle
    half = beta_regularised(df / 2, 0.5, df / (df + t * t)) / 2
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """t with P(T <= t) = p, for 0 < p < 1."""
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs 0 < p < 1, not {p}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    return _root(lambda t: (1 - p) - t_tail(t, df))


def f_tail(f: float, df1: float, df2: float) -> float:
    """P(F > f) for Fisher's F."""
    if f <= 0:
        return 1.0
    return beta_regularised(df2 / 2, df1 / 2, df2 / (df2 + df1 * f))


@lru_cache(maxsize=4096)
def f_quantile(p: float, df1: float, df2: float) -> float:
    """f with P(F <= f) = p, for 0 < p < 1."""
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs 0 < p < 1, not {p}")
    return _root(lambda f: (1 - p) - f_tail(f, df1, df2))


def _root(increasing: Callable[[float], float]) -> float:
    """The root in [0, inf) of an increasing function, to the last bits."""
    high = 1.0
    while increasing(high) < 0:
        high *= 2
    low = 0.0
    while (middle := (low + high) / 2) not in (low, high):
        if increasing(middle) < 0:
            low = middle
        else:
            high = middle
    return high
