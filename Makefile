# `make demo` and `make test` are the whole set-up: they build .venv from pyproject.toml.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
UV := $(VENV)/uv/bin/uv

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /	/' | expand -t 18

# uv finds a Python >= 3.12 wherever it is installed; it is itself installed from the package index.
$(VENV)/ready: pyproject.toml
	python3 -m venv $(VENV)/uv
	$(VENV)/uv/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) venv --quiet --allow-existing --no-python-downloads --python '>=3.12' $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --editable . --group dev
	touch $@

install: $(VENV)/ready  ## everything into .venv

test: install  ## the whole test suite
	$(BIN)/python -m pytest tests -m "not slow"

.PHONY: help install test
