# Two commands are all a newcomer needs: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: help setup demo test lint types contract pytest clean

help:
	@echo "make demo    reconstruct a simulated scan on two ranks; pictures and result in demo/"
	@echo "make test    lint, types, import contract, tests"
	@echo "make clean   remove the environment and what demo left"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/ptymesh demo --ranks 2 --out demo

test: lint types contract pytest

lint: setup
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests

types: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports

# two workers: most tests use one thread
pytest: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

clean:
	rm -rf $(VENV) demo
