"""``python -m kvbench``: the same as the ``kvbench`` console script."""

import sys

from kvbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
