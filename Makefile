# `make demo` and `make test` set all up in .venv and go. PYTHON=python3.12 uses that interpreter, in .venv-3.12.
# `make test-long` runs the tests that `make test` leaves out: more models, seeds and combinations. What tests draw is
# the same in each `make test` and something else in each `make test-long`; TEST_SEED=N draws what N drew before.
# Then it runs the tests of kernels for each kind of processor that this machine can stand for, with each library said
# to be the fastest; `make test-processors` does that alone.
# `make test-gpu` runs kernels and models on a GPU.
# `make libraries` runs the compiler on other people's libraries, which it puts into .libraries.
# `make test-python314` runs the tests under Python 3.14, in a Debian that it makes in FOLDER (root, debootstrap).
# `make test-versions` runs a short selection with each Python whose environment is set up (PYTHONS=... names more);
# `make environment PYTHON=python3.12 TORCH=2.14.1` sets up one of another torch, in .venv-3.12-torch2.14.1.
# `make cpython` runs the tests of the interpreter itself, each inlined into a compiled function.
# `make third-party` does that with the tests of other people's libraries, which it puts into .third_party.
PYTHON ?= python3
TORCH ?=
VENV := .venv$(patsubst python%,-%,$(filter-out python python3,$(notdir $(PYTHON))))$(addprefix -torch,$(TORCH))
PY := $(VENV)/bin/python
SOURCES := $(wildcard dynamo/csrc/* inductor/runtime/csrc/* dynamo/lazy/csrc/*) setup.py pyproject.toml
# A cleaned checkout has a stamp and no extensions.
MISSING := $(if $(and $(wildcard dynamo/_C.*.so),$(wildcard inductor/runtime/_launch.*.so),$(wildcard dynamo/lazy/_C.*.so)),,missing)

# Tests run on all cores; one that takes long is not left for the end.
PARALLEL := -n auto --dist worksteal

# What one process has compiled of our Python files another one loads: that saves 1.6 s of CPU time for each that a
# test starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: missing setup environment test test-long test-processors test-install test-environments test-gpu demo docs lint bench libraries cpython third-party test-python314 test-versions
setup: $(VENV)/.built

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Bytecode is written for what is imported: that of the models of transformers alone would take 12 s.
$(VENV)/.deps: pyproject.toml | $(VENV)/bin/python
	@if [ -n "$(TORCH)" ]; then $(PY) -m pip install -q torch==$(TORCH) numpy; \
	elif $(PY) -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; \
	then $(PY) -m pip install -q torch==2.13.0 numpy; \
	else $(PY) -m pip install -q torch==2.11.0 'numpy<2.4'; fi
	$(PY) -m pip install -q --no-compile setuptools packaging pytest pytest-xdist hypothesis transformers einops bytecode rich
	@touch $@

$(VENV)/.lint: | $(VENV)/.deps
	$(PY) -m pip install -q --no-compile ruff mypy
	@touch $@

$(VENV)/.built: $(VENV)/.deps $(SOURCES) $(MISSING)
	$(PY) -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

test: setup
	$(PY) -m pytest -q $(PARALLEL)

test-long: setup
	TEST_SEED=$${TEST_SEED:-$$(date +%s)} $(PY) -m pytest -q -m "long or draws" $(PARALLEL)
	$(MAKE) test-processors

test-processors: setup
	set -e; $(PY) -m tests.processors | while read -r kind; do echo "DYNAMO_PROCESSOR=$$kind"; \
	DYNAMO_PROCESSOR="$$kind" $(PY) -m pytest -q $(PARALLEL) tests/package tests/inductor </dev/null; done

# A wheel of this folder, in a new environment.
test-install: setup
	$(PY) -m pytest -q -m long tests/install

# All ways of `pip install`, in environments in which nothing is installed yet; a few minutes for each of PYTHONS.
PYTHONS ?= $(PYTHON)
test-environments:
	for python in $(PYTHONS); do $(PYTHON) -m tests.install.environments $$python || exit 1; done

# On a machine with a GPU, at most eight minutes; kernels and models run for real.
test-gpu: setup
	$(PY) -m tests.gpu.run

# What tests need; the extensions here may be for another torch.
environment: $(VENV)/.deps

# Environments that are set up, those of PYTHONS, and the Debian in FOLDER; pairs that did not run are named.
FOLDER ?= /opt/python314
test-versions:
	$(PYTHON) -m tests.versions $(filter-out $(PYTHON),$(PYTHONS)) $(wildcard $(FOLDER))

test-python314:
	PIP="$(PYTHON) -m pip" tests/python314.sh $(FOLDER) $(TESTS)

.libraries/.installed: tests/libraries/requirements.txt | $(VENV)/.deps
	$(PY) -m pip install -q --no-deps --upgrade --target .libraries -r $<
	@touch $@

libraries: setup .libraries/.installed
	PYTHONPATH=.libraries $(PY) -m pytest -q -m libraries tests/libraries

cpython: setup
	$(PY) -m pytest -q -m cpython tests/cpython $(PARALLEL)

.third_party/.installed: tests/third_party/requirements.txt | $(VENV)/.deps
	$(PY) -m pip install -q --no-deps --upgrade --target .third_party/site -r $<
	@touch $@

third-party: setup .third_party/.installed
	$(PY) -m pytest -q -m third_party tests/third_party $(PARALLEL)

demo: setup
	$(PY) -m examples.demo

bench: setup
	$(PY) benchmarks/compare.py

# The pages and an API reference, in the folder `site`.
docs:
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install -q mkdocs 'mkdocstrings[python]'
	.venv-docs/bin/mkdocs build --strict

lint: setup $(VENV)/.lint
	$(VENV)/bin/ruff check dynamo inductor tests examples benchmarks
	$(VENV)/bin/mypy
