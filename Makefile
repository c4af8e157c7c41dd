# Two commands are all a newcomer needs: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

# Tests start many processes; without its cache Python would compile ptymesh's two hundred modules in each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup kernels demo docs test lint types contract pytest long package slurm stand-in conformance fuzz faults kills kit gpu-check clean

help:
	@echo "make demo    reconstruct a simulated scan on two ranks; pictures and result in demo/"
	@echo "make test    lint, types, import contract, tests"
	@echo "make long    further seeds, ranks and moments of what make test tries once"
	@echo "make docs    the documentation as a site for a browser: site/index.html"
	@echo "make package wheel and sdist, installed into fresh environments and used there; both in dist/"
	@echo "make stand-in  what GPUs would do, on devices that are pretended: the checks that take minutes"
	@echo "make slurm   submit a job to Slurm, if it is installed; as root, on loopback, a minute"
	@echo "make fuzz    unsound inputs by the thousand (TRIES, SEED, PROCESSES, MINUTES); report in fuzz/"
	@echo "make faults  every write, fsync, rename, ... of a short run fails once, on one and two ranks; faults.json"
	@echo "make kills   runs are killed at random moments and resumed (TRIES, SEED); kills.json"
	@echo "make kit     for a machine without a network: wheels, checks, run.sh in dist/kit (PYTHON=3.12, FREEZE, WITHOUT)"
	@echo "make gpu-check  on a machine with a GPU: all that it can tell, in ten minutes; report in gpu-check/ (ONLY, LIST)"
	@echo "make clean   remove the environment and what demo left"

setup: $(VENV)/.installed

# Which Triton, torch says: its builds for CUDA, which pip takes on Linux unless it is told of others, ask for one version
# exactly. constraints.txt has the one beside torch's builds for CPUs.
PINS = $(VENV)/constraints.txt
PIP  = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(PINS)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@grep -v '^triton==' constraints.txt > $(PINS)
	$(PIP) torch
	@$(BIN)/python -c "import sys, importlib.metadata as m; sys.exit('triton' not in str(m.requires('torch')))" \
	  || cp constraints.txt $(PINS)
	$(PIP) --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/ptymesh demo --ranks 2 --out demo
	@echo "In this shell, '. $(BIN)/activate' lets you type ptymesh."

# Warnings are errors; every link within the site is followed, and nothing may be fetched from a network. Then the
# commands of README.md and of the first tutorial are typed, line by line.
docs: setup $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs site
	$(BIN)/python docs/check_site.py site
	$(BIN)/python -m pytest -m docs -n 2 tests/docs

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	@touch $@

test: lint types contract pytest

lint: setup
	$(BIN)/ruff check src tests docs benchmarks tools
	$(BIN)/ruff format --check src tests docs benchmarks tools

types: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports

# Compiled before the tests, as that may take longer than a test may: minutes, and more where workers share the cores.
kernels: setup
	$(BIN)/python -m ptymesh warm

# three workers for two cores: most tests use one thread, and some wait
pytest: kernels
	$(BIN)/python -m pytest -n 3 --dist worksteal

# What would keep `make test` too long: more seeds, moments, and numbers of ranks.
long: kernels
	$(BIN)/python -m pytest -m long -n 3 --dist worksteal

# With the newest versions of what ptymesh needs, and with the oldest that pyproject.toml allows: minutes, and a network.
package: setup
	$(PIP) --editable '.[dev,package]'
	$(BIN)/python -m pytest -m package -n 2 tests/packaging

# What takes minutes in Triton's interpreter and on devices that are pretended.
stand-in: setup
	$(BIN)/python -m pytest -m stand_in -n 2 tests/kernels

# Slurm looks every 30 s whose time is nearly up; so this waits, and is best alone on the machine.
slurm: setup
	$(BIN)/python -m pytest -m slurm -ra tests/cli/test_slurm_cluster.py

# Campaigns, of which `make test` runs a sample. What `make fuzz` finds is played again by
# `... campaign.py --seed SEED --only NUMBER`.
fuzz: TRIES = 20000
fuzz: SEED = 1
fuzz: PROCESSES = 2
fuzz: MINUTES = 60
kills: TRIES = 200
FUZZ_OUT ?= fuzz

fuzz: setup
	$(BIN)/python tests/fuzz/campaign.py --tries $(TRIES) --seed $(SEED) --processes $(PROCESSES) \
	  --minutes $(MINUTES) --out $(FUZZ_OUT)

faults: setup
	$(BIN)/python tests/fuzz/faults.py --report faults.json

# Small problems of every family of engines, then the Siemens star, on 1 to 4 ranks, in both layouts, with one thread and
# two, and resumed elsewhere: half an hour.
conformance: setup
	$(BIN)/python -m pytest -m every_cell -n 2 --dist worksteal tests/conformance
	$(BIN)/python tests/conformance/star.py

kills: setup
	$(BIN)/python tests/fuzz/kills.py --tries $(TRIES) $(if $(SEED),--seed $(SEED)) --report kills.json

# All that a GPU machine can tell, in slices, in ten minutes. BIN must have a torch that sees the GPU: `make gpu-check
# BIN=$$(dirname $$(which python))` uses an environment that exists. ONLY=failed does again what failed or was left;
# LIST=1 prints the checks and their limits. STAR is the Siemens star for the peers; without it they are left out.
# STAND_IN=1 tries the checks themselves, without a GPU.
STAR   ?= $(firstword $(wildcard ../shared/data/siemens-star-small.npz.bz2 $(PTYMESH_DATA)/siemens-star-small.npz.bz2))
GPU_OUT ?= gpu-check

gpu-check:
	@PTYMESH_STARTED=$$(date +%s) $(BIN)/python tests/kernels/gpu_check.py --out $(GPU_OUT) \
	  $(if $(STAR),--star $(STAR)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(LIST),--list) $(if $(STAND_IN),--stand-in)

# All that a machine without a network lacks, for its Python and platform: docs/how-to/install.md.
#     make kit PYTHON=3.12 PLATFORM=manylinux_2_28_x86_64 FREEZE=freeze.txt WITHOUT=hdf5plugin
PLATFORM ?= manylinux_2_28_x86_64
KIT_OUT  ?= dist/kit
KIT_PEERS ?= $(KIT_OUT)-peers

# PYTHON is the target's version here, and not the program that setup makes the environment with.
kit:
	@test -x $(BIN)/python || $(MAKE) setup PYTHON=python3
	@$(BIN)/python tools/make_kit.py --platform $(PLATFORM) --out $(KIT_OUT) --peers $(KIT_PEERS) \
	  $(if $(filter 3.%,$(PYTHON)),--python $(PYTHON)) $(if $(FREEZE),--freeze $(FREEZE)) \
	  $(if $(WITHOUT),--without $(WITHOUT)) $(if $(STAR),--star $(STAR)) $(if $(MOST_MIB),--most-mib $(MOST_MIB))

clean:
	rm -rf $(VENV) demo site build/doctrees $(FUZZ_OUT)
