"""What must hold byte for byte, and the faults that must make a gate fail (registry.py)."""
