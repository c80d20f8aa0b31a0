# Everything a person or CI runs. Needs Python 3.11 or newer and make; the rest goes into .venv, at the versions in requirements.lock.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal
INSTALLED := $(VENV)/.installed
ARGS ?=

export MPLCONFIGDIR := $(CURDIR)/build/matplotlib

.DEFAULT_GOAL := help
.PHONY: help install demo test check slow long lint types docs docs-update format lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED)  ## create .venv with the locked versions and xstage itself (done by the others)

demo: $(INSTALLED)  ## run the main example; results in out/demo
	$(BIN)/python -m xstage demo -o out/demo

test: $(INSTALLED)  ## run the tests; ARGS="-k burst" picks some
	$(PYTEST) $(ARGS)

check: lint types slow docs  ## run what `make test` leaves out: lint, types, slow tests, docs; not the long tests

slow: $(INSTALLED)  ## run the tests marked slow
	$(PYTEST) -m slow $(ARGS)

long: $(INSTALLED)  ## run the tests marked long: both engines on 20,000 programs and on the largest scenarios, half an hour
	$(PYTEST) -m long $(ARGS)

lint: $(INSTALLED)  ## check style and format
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check

types: $(INSTALLED)  ## check the type hints
	rm -rf build/types && mkdir -p build/types/xstage
	cd build/types/xstage && ln -s ../../../xstage/* ../../../sim ../../../hw_validate ../../../scenarios ../../../sweeps ../../../plots .
	$(BIN)/python -m mypy build/types/xstage

docs: $(INSTALLED)  ## run every command and example in README.md and docs/
	$(BIN)/python docs/check.py --jobs 2 $(ARGS)

docs-update: $(INSTALLED)  ## the same, and write what the commands print into the pages
	$(BIN)/python docs/check.py --update $(ARGS)

format: $(INSTALLED)  ## format the code, and fix what lint can fix
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

lock:  ## write requirements.lock for pyproject.toml; ARGS=--upgrade takes newer versions
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade uv
	UV_CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/python -m uv pip compile --quiet --universal --fork-strategy fewest \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --extra dev --cache-dir build/lock/cache $(ARGS) \
	  --output-file requirements.lock pyproject.toml

clean:  ## delete all that these targets made
	rm -rf $(VENV) build out xstage.egg-info .hypothesis

$(INSTALLED): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$("$(PYTHON)" --version 2>&1) is too old: xstage needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@echo "Installing the packages of requirements.lock (once; a minute or two)"
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
