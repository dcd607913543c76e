# The two commands a newcomer needs: `make ab` (the main job) and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# What pip installs as torch for `make test-optin`.
TORCH  ?= torch
export TORCH
PIP    := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check --quiet

.DELETE_ON_ERROR:
.PHONY: help ab test test-long test-optin check lint types wheel clean

help:
	@echo 'make ab         set up, then run the main job: gate, A/B blocks, verdict'
	@echo 'make test       set up, then static checks and tests'
	@echo 'make test-long  the longer tests, and those on the real llama.cpp server'
	@echo 'make test-optin tests that need torch and transformers, or KVBENCH_LLAMA_BIN'
	@echo 'make check      static checks only (ruff, import-linter, mypy)'
	@echo 'make wheel      build dist/kvbench-*.whl'
	@echo 'make clean      remove the environment and build outputs'

$(VENV)/.ready: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys, venv; sys.exit(0 if sys.version_info >= (3, 11) else "kvbench needs Python 3.11 or newer with venv; try make PYTHON=python3.11")'
	@echo "setting up $(VENV)/, once; pip is quiet meanwhile"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install --editable .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) install --editable '.[dev]'
	@touch $@

$(VENV)/.ready-peer: $(VENV)/.ready-dev
	$(PIP) install --editable '.[dev,peer]'
	@touch $@

$(VENV)/.ready-optin: $(VENV)/.ready-peer
	$(PIP) install "$$TORCH"
	$(PIP) install --editable '.[dev,peer,transformers]'
	@touch $@

ab: $(VENV)/.ready
	$(BIN)/kvbench ab

test: check
	$(BIN)/python -m pytest -n 2 -m 'not long and not peer and not optin'

test-long: $(VENV)/.ready-peer
	$(BIN)/python -m pytest -n 2 -m 'long or peer'

test-optin: $(VENV)/.ready-optin
	$(BIN)/python -m pytest -rs -m optin

check: lint types

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.ready-dev
	$(BIN)/mypy

wheel: $(VENV)/.ready-dev
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
