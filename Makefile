# Everything runs in .venv, which is made when it is missing and brought up to date when the locks
# change.
# Threads that spin at barriers starve each other where other programs run too.
export OMP_WAIT_POLICY ?= PASSIVE
# Else each of the many processes that tests start would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Most tests wait for processes and timers, so more of them run at once than there are cores.
TESTS_AT_ONCE ?= 4
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal --durations 20 --numprocesses

.PHONY: demo docs test test-unit test-gpu test-slow test-nightly storm lint serve clean install lock

demo: $(STAMP)
	$(BIN)/expunge demo

test: $(STAMP)
	$(PYTEST) $(TESTS_AT_ONCE)

# What needs no server.
test-unit: $(STAMP)
	$(PYTEST) 2 tests/unit

# Whole services, a fault of each kind, every page: what takes longer.
test-slow: $(STAMP)
	$(PYTEST) $(TESTS_AT_ONCE) -m "slow and not nightly"

# Every command of the documentation; faults, tasks and histories by each mechanism.
test-nightly: $(STAMP)
	$(PYTEST) $(TESTS_AT_ONCE) -m nightly

# What must hold on a CUDA device, where there is one.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu -rs

# Minutes of faults over a whole service; SEEDS="1 2 3" has them again.
storm: $(STAMP)
	$(BIN)/python -m tests.system.storm $(SEEDS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation as a site that can be searched: site/index.html. A dead link or a page that the
# navigation lacks is an error. Its tools have an environment of their own; what the code describes
# is written first, in build/pages. What documents, containers and benchmarks say is tested last.
DOCS_VENV := .venv-docs
docs: $(STAMP) $(DOCS_VENV)/.installed
	$(BIN)/python docs/pages.py build/pages
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build
	$(PYTEST) 2 -m docs

$(DOCS_VENV)/.installed: docs/requirements.lock
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --no-deps --only-binary :all: --require-hashes \
		--requirement docs/requirements.lock
	touch $@

serve: $(STAMP)
	$(BIN)/expunge up

install: $(STAMP)

# What is installed has the hash that a lock names, but torch: which build of it is right depends on
# the machine, and comes from wherever pip is configured to look. Of resemblyzer only a file is used,
# so pip need not warn that what its code needs is missing.
$(STAMP): requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --only-binary :all: --require-hashes \
		--requirement requirements-dev.lock
	$(BIN)/pip install --quiet --no-warn-conflicts --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

# The locks, from pyproject.toml and constraints.txt: after each change of one of them.
LOCK := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate \
	--no-header --constraint constraints.txt --no-emit-package torch pyproject.toml
lock:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/pip install --quiet --constraint constraints.txt uv
	$(LOCK) --extra worker --extra vault --extra otel --output-file requirements.lock
	$(LOCK) --extra worker --extra vault --extra otel --extra onnx --extra bench --extra dev --output-file requirements-dev.lock
	$(LOCK) --extra torch --output-file examples/bridges/requirements.lock examples/bridges/requirements.in
	$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--constraint constraints.txt docs/requirements.in --output-file docs/requirements.lock

clean:
	rm -rf $(VENV) $(DOCS_VENV) site build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
