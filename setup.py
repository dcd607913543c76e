"""Only what pyproject.toml cannot say: three data folders ship inside the kvbench package."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["kvbench*", "gates*", "runner*"]),
        "kvbench._suites",
        "kvbench._published",
        "kvbench._measured",
    ],
    package_dir={
        "kvbench._suites": "configs",
        "kvbench._published": "results/published",
        "kvbench._measured": "results/h200",
    },
    package_data={
        "": ["py.typed", "**/*.cu", "**/*.cuh", "**/*.c", "**/*.h", "*.j2", "*.css", "*.js"],
        "kvbench._suites": ["*.toml", "README.md"],
        "kvbench._published": ["*.csv", "README.md"],
        "kvbench._measured": ["*.jsonl", "README.md"],
    },
)
