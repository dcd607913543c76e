"""Only what pyproject.toml cannot say: two data folders ship inside the kvbench package."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["kvbench*", "gates*", "runner*"]),
        "kvbench._suites",
        "kvbench._published",
    ],
    package_dir={"kvbench._suites": "configs", "kvbench._published": "results/published"},
    package_data={
        "": ["py.typed", "**/*.cu", "**/*.cuh", "**/*.c", "**/*.h", "*.j2", "*.css", "*.js"],
        "kvbench._suites": ["*.toml", "README.md"],
        "kvbench._published": ["*.csv", "README.md"],
    },
)
