# The two commands a newcomer needs: `make ab` (the main job) and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: ab test test-long check lint types wheel clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvbench needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

ab: $(VENV)/.ready
	$(BIN)/kvbench ab

test: check $(VENV)/.ready-dev
	$(BIN)/python -m pytest -n 2 -m 'not long and not peer'

test-long: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -n 2 -m 'long'

check: lint types

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.ready-dev
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
