"""A directory to put on a child's import path so that a build does nothing (see assets.fetch)."""
