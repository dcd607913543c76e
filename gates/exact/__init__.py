"""Engine-level exactness: any arm against a baseline, compared by its outputs."""

from gates.exact.cell import CellOptions, gate_cell

__all__ = ["CellOptions", "gate_cell"]
