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
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --editable '.[all]' --group dev
	touch $@

install: $(VENV)/ready  ## everything into .venv

demo: install  ## simulate, ingest and fit a scan of known truth; leaves demo/
	mkdir -p demo && touch demo/begun
	$(BIN)/homodyne-dask simulate demo/A0001_results.hdf --scenario creep --angles 23 --frames 300 --noise speckle --overwrite
	$(BIN)/homodyne-dask ingest demo/A0001_results.hdf --overwrite
	$(BIN)/homodyne-dask fit demo/A0001_c2.zarr --model laminar_flow --overwrite
	@$(BIN)/python -m tests.examples.demo demo/A0001_fit demo/begun

demo-rings: install  ## the same for six rings, each fitted alone: D(q), and the power of q of the decay rate
	mkdir -p demo && touch demo/begun
	$(BIN)/homodyne-dask simulate demo/R0001_results.hdf --scenario brownian --rings 6 --angles 2 --noise speckle --overwrite
	$(BIN)/homodyne-dask ingest demo/R0001_results.hdf --overwrite
	$(BIN)/homodyne-dask fit demo/R0001_c2.zarr --model brownian --over q --overwrite
	@$(BIN)/python -m tests.examples.demo demo/R0001_fit_q demo/begun

picture: demo demo-rings  ## docs/demo.png, the picture of the README, from the demos
	$(BIN)/python -m tests.examples.demo_picture

test: install  ## the quick tests, two files at a time: minutes
	$(BIN)/python -m pytest tests -m "not slow and not long" -n 2 --dist loadfile --no-loadscope-reorder

test-long: install  ## the tests of some seconds each, that make test leaves out
	$(BIN)/python -m pytest tests -m "long and not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-versions: install  ## the quick tests with the oldest and the newest packages, on Python 3.12, 3.13 and 3.14
	$(BIN)/python -m tests.versions --uv $(CURDIR)/$(UV)

dist: install  ## the wheel and the source distribution, in dist/
	rm -rf dist
	$(UV) build --quiet --out-dir dist

release: install  ## VERSION=1.0.0: the version in all files, checksums, metadata of the archive, a tag; publishes nothing
	deploy/release.sh "$(VERSION)" $(CURDIR)/$(UV) build --quiet --out-dir

test-wheel: dist  ## the wheel alone on Python 3.12, 3.13 and 3.14: commands, types, quick tests
	$(BIN)/python -m tests.wheel --uv $(CURDIR)/$(UV) dist/*.whl

man: install  ## manual pages of all commands, in dist/man
	$(UV) pip install --quiet --python $(BIN)/python --group man
	mkdir -p dist/man
	$(BIN)/click-man --target dist/man homodyne-dask

docs: install  ## the documentation site, in build/docs/html: runs its tutorials, checks its links
	$(UV) pip install --quiet --python $(BIN)/python --group docs
	$(BIN)/python -m sphinx -W --keep-going -q -d build/docs/doctrees docs build/docs/html

paper: install  ## the figures of paper/paper.md, and the table of its example
	$(BIN)/python paper/figures.py

# make test uses Chromium where it is installed; on Debian and Ubuntu this installs it
CHROMIUM := apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core

chromium:  ## the browser that looks at the pages in the tests, from Debian's packages (as root)
	command -v chromium || { $(CHROMIUM); }

test-browser: install chromium  ## the live page and the report in headless Chromium; leaves artefacts/browser/*.png
	$(BIN)/python -m pytest tests/browser tests/apps -k "browser or chromium" -m ""

test-chaos: install  ## the long part of tests/faults: kills at random moments, 10⁵ damaged files, ten minutes of fits
	$(BIN)/python -m pytest tests/faults tests/apps/watch -m slow --ignore=tests/faults/test_long.py
	# in a process of its own: its memory is measured, and the heap that other tests leave is full of holes
	$(BIN)/python -m pytest tests/faults/test_long.py -m slow

slurm:  ## install SLURM from Debian's packages, where it is missing
	tests/apps/slurm/install.sh

test-slurm: install slurm  ## every test on a SLURM on the loopback address
	tests/apps/slurm/held.sh /tmp/slurm-try </dev/null
	$(BIN)/python -m pytest tests/apps/slurm

benchmark: install  ## rates, memory, start-up, coverage of the errors; writes benchmark.json
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m pytest tests -m slow --ignore=tests/faults --ignore=tests/apps/slurm

# the peers have their own environments: what they ask for is not what we are tested with, nor the same
PEERS ?= .venv-peers
XPCSJAX ?= .venv-xpcsjax
ANGLES ?= 23
FRAMES ?= 300
LIMIT ?= 20
SCALING ?= shared individual

$(PEERS)/ready: $(VENV)/ready
	$(UV) venv --quiet --allow-existing --no-python-downloads --python '>=3.12' $(PEERS)
	$(UV) pip install --quiet --python $(PEERS)/bin/python --compile-bytecode homodyne nlsq
	touch $@

$(XPCSJAX)/ready: $(VENV)/ready
	$(UV) venv --quiet --allow-existing --no-python-downloads --python '>=3.12' $(XPCSJAX)
	$(UV) pip install --quiet --python $(XPCSJAX)/bin/python --compile-bytecode xpcsjax
	touch $@

BESIDE = $(BIN)/python -m tests.benchmarks.peers --peers $(PEERS) --xpcsjax $(XPCSJAX) \
	--angles $(ANGLES) --frames $(FRAMES) --limit $(LIMIT) --scaling $(SCALING)

benchmark-peers: install $(PEERS)/ready $(XPCSJAX)/ready  ## homodyne, xpcsjax and nlsq beside ours; ANGLES=23 FRAMES=300 LIMIT=20 (min a row)
	$(BESIDE)

benchmark-gpu: install  ## passes and a fit of 2e8 points on a GPU, beside cores and homodyne, if installed; needs jax[cuda13] in .venv
	$(BIN)/python -m tests.benchmarks cores gpu

reproduce: install $(PEERS)/ready $(XPCSJAX)/ready  ## the paper's comparison as tables and figures, in artefacts/reproduce; ANGLES, FRAMES, LIMIT
	mkdir -p artefacts/reproduce
	$(BESIDE) --programs homodyne_dask homodyne xpcsjax nlsq.curve_fit --record artefacts/reproduce/record.json
	$(BIN)/python -m tests.benchmarks.peers.gallery artefacts/reproduce

# what facilities run has its own environment, too: Globus asks for older packages
DEPLOY := .venv-deploy

$(DEPLOY)/ready: $(VENV)/ready
	$(UV) venv --quiet --allow-existing --no-python-downloads --python '>=3.12' $(DEPLOY)
	$(UV) pip install --quiet --python $(DEPLOY)/bin/python --compile-bytecode --editable '.[filters,slurm,view]' --group deploy
	touch $@

nginx:  ## install nginx from Debian's packages, where it is missing
	test -x /usr/sbin/nginx || { apt-get update -q && apt-get install -q -y --no-install-recommends nginx-light; } >/dev/null

test-deploy: $(DEPLOY)/ready nginx  ## what is in deploy/: Globus Compute, ewoks, MPI, dask-gateway, manifests, the image
	$(DEPLOY)/bin/python -m pytest tests/deploy --override-ini filterwarnings=default

lint: install  ## style, types and the layers of the imports; all but the types are a part of make test
	$(BIN)/python -m pytest tests/test_style.py

clean:  ## remove what was built, .venv too
	rm -rf $(VENV) $(PEERS) $(XPCSJAX) $(DEPLOY) .venv-versions demo artefacts build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help install demo demo-rings picture test test-long test-versions dist release test-wheel man docs paper chromium test-browser test-chaos slurm test-slurm benchmark benchmark-peers benchmark-gpu reproduce test-deploy lint clean
