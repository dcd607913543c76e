"""kvbench: bench and judge for exact inference-engine optimisations.

Importing this package imports nothing else. ``kvbench.cli`` is the command line.
"""

__version__ = "0.1.0"
