"""Where the pipeline pays: the crossing and the ring that is worth having, in closed form.

Per step: copy = 2 · layers · row bytes · rows / bandwidth; compute is given. Source of the optimum:
the gain peaks where copy = compute, and a ring of N + 2 slots then holds (slots / layers) of what
the link moves in one step's compute. It does not depend on the KV type.
"""

from __future__ import annotations


def crossing_rows(layers: int, row_bytes: int, link: float, compute_s: float) -> float:
    """Rows of history at which the copies of a step take as long as its compute."""
    return compute_s * link / (2 * layers * row_bytes)


def optimum_ring_bytes(slots: int, layers: int, link: float, compute_s: float) -> float:
    """Bytes of the ring at the crossing: (slots / layers) · compute · bandwidth."""
    return slots / layers * compute_s * link


def gain_per_mib(rows: float, layers: int, row_bytes: int, link: float, compute_s: float) -> float:
    """Past the crossing: percent gained per MiB of ring (3 slots); falls with the rows' square."""
    copy = 2 * layers * row_bytes * rows / link
    gain = 100 * (copy + compute_s) / max(copy, compute_s) - 100
    return gain / (3 * 2 * row_bytes * rows / (1 << 20))
