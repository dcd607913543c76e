"""Stands in for setuptools in the child that pip starts to ask a source archive its name."""
