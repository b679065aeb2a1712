# Every target makes its environment first. PYTHON is the interpreter that the environment is made of.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Build of torch: cpu, cu126, ...; empty is the pinned one, for CUDA 13. cpu, gigabytes smaller, where no GPU is found
TORCH  ?= $(if $(filter Linux,$(shell uname -s)),$(if $(wildcard /dev/nvidia0 /dev/nvidiactl /dev/dxg),,cpu))
INSTALL = $(BIN)/uv pip install -q --python $(BIN)/python
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export RAY_USAGE_STATS_ENABLED = 0
export MLFLOW_DISABLE_TELEMETRY = true

.PHONY: help setup sweep test test-all test-browser test-gpu test-faults test-cluster wheel release-check lint format bench bench-gpu null-simulation check-methods chaos fuzz video-formats scale ui docs clean mutants hashes verify-hashes sbom
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt uv
	@echo "setup: installing about 200 packages into $(VENV); takes about 2 minutes and 3 GB, or 7 GB with torch for CUDA"
	@# The pins of CUDA's libraries belong to the pinned build
	@torch="$(TORCH)"; pins=constraints.txt; \
	if [ -n "$$torch" ] && ! UV_HTTP_RETRIES=1 $(BIN)/uv pip install -q --dry-run --no-deps --reinstall --python $(BIN)/python \
			--torch-backend "$$torch" "$$(grep '^torch==' constraints.txt)" 2>/dev/null; then \
		echo "setup: torch's build for $$torch cannot be reached, so the pinned build with CUDA is installed (4 GB more)"; \
		torch=""; \
	fi; \
	[ -z "$$torch" ] || { pins=$(VENV)/pins.txt; grep -Eiv '^(nvidia-|cuda-|triton)' constraints.txt >$$pins; }; \
	$(INSTALL) $${torch:+--torch-backend $$torch} -c $$pins -e '.[all,dev]'
	@echo "setup: compiling to bytecode, so that commands start faster"
	@$(INSTALL) --compile-bytecode --no-deps -e . && $(BIN)/python -m compileall -q -j 0 ctvr methods orchestrator search_spaces \
		|| echo "setup: not compiled; commands work, and their first call takes longer"
	@touch $@

setup: $(READY)  ## make the environment, and print the line that activates it (TORCH=cpu: torch without CUDA)
	@echo "source $(BIN)/activate"

sweep: $(READY)  ## the main job on the embedded stream: search, rerun over seeds, table (ARGS="--trials 12")
	$(BIN)/python orchestrator/sweep.py $(ARGS)

# Tests run in children of pytest's own process, which loads no package: see tests/conftest.py.
WORKERS ?= 2
PYTEST  := $(BIN)/python -m pytest --dist worksteal
test: $(READY)  ## quick tests (WORKERS=2 processes)
	$(PYTEST) -n $(WORKERS) -m "not slow" $(ARGS)

test-all: $(READY)  ## all tests: the quick and slow ones, then those that run Ray in one process
	$(PYTEST) -n $(WORKERS) -m "not ray and not fault" --durations=25 $(ARGS)
	$(PYTEST) -n 1 -m "ray and not fault" --durations=25 $(ARGS) tests/orchestrator/on_ray

test-gpu: $(READY)  ## every method on a GPU: repeats bit for bit, learns what the CPU learns (minutes; skipped without a GPU)
	$(PYTEST) -n $(WORKERS) -m "slow or not slow" $(ARGS) tests/devices/test_real_gpu.py

test-faults: $(READY)  ## kill a sweep on Ray, over and over, and lose a node; on an otherwise idle machine
	$(PYTEST) -n 1 -m fault $(ARGS) tests/faults/test_node_loss.py tests/chaos/test_sweeps.py tests/cluster/test_three_hosts.py

test-cluster: $(READY)  ## cluster files, a stack in moto's account, hosts made of network namespaces, a Slurm of two nodes
	$(INSTALL) -c constraints.txt Flask-WTF
	$(PYTEST) -n 1 -m "slow or not slow" --durations=25 $(ARGS) tests/cluster

SCREENSHOTS ?= build/screenshots
test-browser: export CTVR_SCREENSHOTS = $(abspath $(SCREENSHOTS))
test-browser: $(READY)  ## pages in Debian's Chromium: axe-core, desktop, phone, dark, print; pictures go to SCREENSHOTS=build/screenshots
	$(INSTALL) -c constraints.txt axe-playwright-python
	mkdir -p $(SCREENSHOTS)
	$(PYTEST) -n 1 -m "slow or not slow" $(ARGS) tests/orchestrator/pages/test_browser.py

wheel: $(READY)  ## build it into dist/, install it elsewhere and run it from there
	rm -rf build
	$(PYTEST) -n 1 tests/test_wheel.py $(ARGS)
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .

release-check: $(READY)  ## version, changelog, tag, wheel, source distribution, workflows: what docs/release.md asks for
	$(BIN)/python -m tools.release_check

lint: $(READY)  ## style, import rules, prose, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py
	$(BIN)/mypy

format: $(READY)  ## rewrite the sources in our style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## time hot paths against plain implementations (ARGS="--quick", "--only NAME")
	$(BIN)/python -m tools.bench $(ARGS)

bench-gpu: $(READY)  ## steps of the loop on a GPU: time, memory, the host's waits
	$(BIN)/python -m tools.bench --gpu $(ARGS)

null-simulation: $(READY)  ## how often tables call equal methods different (minutes)
	$(BIN)/python -m tools.null_simulation $(ARGS)

METHODS ?= $$($(BIN)/python -c 'from ctvr import methods; print(*methods.METHODS)')
check-methods: $(READY)  ## `ctvr methods check` on every method, a minute each; goes on after a failure (METHODS="lwf ewc")
	@failed=""; for name in $(METHODS); do \
		echo "== $$name"; $(BIN)/ctvr methods check $$name || failed="$$failed $$name"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

KILLS ?= 200
SEED  ?= 0
chaos: $(READY)  ## kill runs at KILLS=200 seeded moments, go on, compare with unbroken ones (ARGS=--ray: sweeps on Ray; ARGS=--commands: exports, imports, gc, rebuild)
	$(BIN)/python -m tests.chaos --kills $(KILLS) --seed $(SEED) $(ARGS)

COUNT ?= 2000
fuzz: $(READY)  ## give every reader damaged files, COUNT=2000 in all, drawn from SEED=0 (ARGS="--targets npz,csv")
	$(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED) $(ARGS)

NODES  ?= 16
TRIALS ?= 100
scale: $(READY)  ## drive a sweep of TRIALS=100 trials on NODES=16 raylets of this machine; nothing is trained
	$(BIN)/python -m tests.scale --nodes $(NODES) --trials $(TRIALS) $(ARGS)

mutants: $(READY)  ## plant the kept bugs, or generate bugs in changed functions (ARGS="--changed main"); fails if one passes
	$(BIN)/python -m tests.mutants --jobs 2 $(ARGS)

ui: $(READY)  ## MLflow's pages on http://127.0.0.1:5000
	$(BIN)/ctvr ui $(ARGS)

video-formats: $(READY)  ## make a video of every container, codec and trait, and write which are read into docs/video-formats.md
	$(BIN)/python -m tests.orchestrator.video.matrix

docs: $(READY)  ## the documentation as a site, into site/; nothing is loaded from elsewhere
	$(INSTALL) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)

# Files of a registry change where it builds packages itself, so `make` does not ask for hashes: whoever wants them does
VERIFIED ?= .venv-verified
hashes: $(READY)  ## write constraints-hashes.txt anew, after a change of constraints.txt
	$(BIN)/uv pip compile -q constraints.txt --no-deps --python $(BIN)/python --generate-hashes \
		--no-header --no-annotate -o constraints-hashes.txt

verify-hashes: $(READY)  ## an environment in .venv-verified, each file compared with constraints-hashes.txt; use it as VENV=.venv-verified
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(VERIFIED)
	$(BIN)/uv pip install -q --python $(VERIFIED)/bin/python --require-hashes --no-deps -r constraints-hashes.txt
	$(BIN)/uv pip install -q --python $(VERIFIED)/bin/python --no-deps -e .
	@touch $(VERIFIED)/.ready

sbom: $(READY)  ## the packages of the environment as CycloneDX, into sbom.cdx.json; the tool gets an environment of its own
	$(BIN)/uv tool run -q --from cyclonedx-bom==7.5.0 cyclonedx-py environment --pyproject pyproject.toml \
		--output-reproducible --of JSON -o sbom.cdx.json $(BIN)/python

clean:  ## remove the environment and what the tools left; runs/ stays
	rm -rf $(VENV) $(VERIFIED) sbom.cdx.json build site *.egg-info .mypy_cache .ruff_cache
