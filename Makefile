# Everything runs in .venv, which is made when it is missing and brought up to date when the pins
# change. CPU builds of PyTorch come from wherever pip is configured to look.
# Threads that spin at barriers starve each other where other programs run too.
export OMP_WAIT_POLICY ?= PASSIVE

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Most tests wait for processes and timers, so more of them run at once than there are cores.
TESTS_AT_ONCE ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(TESTS_AT_ONCE) --dist loadfile

.PHONY: api-reference demo test test-guides test-slow storm lint serve clean install

demo: $(STAMP)
	$(BIN)/expunge demo

test: $(STAMP)
	$(PYTEST)

# What `make test` leaves out.
test-slow: $(STAMP)
	$(PYTEST) -m slow

# The commands of docs/how-to, from the pages themselves; each guide starts a service of its own.
test-guides: $(STAMP)
	$(BIN)/python -m pytest -m guides

# Minutes of faults over a whole service; SEEDS="1 2 3" has them again.
storm: $(STAMP)
	$(BIN)/python -m tests.storm $(SEEDS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# docs/api.md, from the code.
api-reference: $(STAMP)
	$(BIN)/python -m app.cli.reference > docs/api.md

serve: $(STAMP)
	$(BIN)/expunge up

install: $(STAMP)

# torch comes first and alone: its pin keeps pip from looking at builds for other accelerators.
$(STAMP): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
