"""A process of its own that runs ``kvbench assets ...`` with one more asset in the catalogue.

Usage: python -m tests.assets.child ARCHIVE JSON_CHANGES FILE_SIZE_LIMIT ARGUMENT...
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from kvbench.cli import main
from tests.assets.sources import asset_of, register

archive, changes, limit, *arguments = sys.argv[1:]
register(asset_of(Path(archive), **json.loads(changes)))
if int(limit):
    sys.dont_write_bytecode = True  # a cut-off .pyc would fail whoever imports it next
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
sys.exit(main(["assets", *arguments]))
