# ChatTTS on Ray Serve. `make` alone lists what there is.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
SERVE  := $(VENV)/bin/chattts-serve
CONFIG ?= configs/dev.yaml
# What serving needs besides the CPU's native code: `make serve EXTRAS=torch CONFIG=configs/gpu.yaml`. docs/installing.md
EXTRAS ?=
# Another index with builds of PyTorch, for CPUs only for example: they are 180 MB instead of 1.7 GB.
TORCH_INDEX ?=
TEXT   ?= Five one one, two five five.
CHECKPOINT ?= demo
MINUTES ?= 60
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
ARGS ?=
INSTALL := $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL="$(TORCH_INDEX)") sh scripts/install.sh $(VENV)/install.log $(RUN) -m pip install
SERVING := $(VENV)/ready-serve$(addprefix -,$(EXTRAS))

.DEFAULT_GOAL := help
.PHONY: help serve box check test test-all lint fast-ring promises say wheel release site judge bench chaos gpu-check gpu-wheels generate constraints clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVING)  ## install what serving needs, start the server (CONFIG=configs/dev.yaml; for a GPU: EXTRAS=torch)
	@$(SERVE) start --restart $(CONFIG)

box: $(VENV)/ready-box  ## install what one process needs, without Ray, and start it (configs/box.yaml)
	@$(SERVE) start box

# Three rings of tests, each inside the next one. What takes long is marked slow, what breaks a cluster or fuzzes for long nightly.
check: fast-ring  ## the fast ring: lint, types, unit tests that are quick
	@echo "Left out: slow unit tests, parity, integration, e2e ('make test'); nightly ones ('make test-all')."

test: fast-ring promises  ## everything that guards a promise
	@echo "Left out: nightly tests, which kill replicas and nodes, replace running versions and fuzz for long ('make test-all')."

test-all: lint  ## every test there is, with many examples: some hours
	CHATTTS_TEST_EFFORT=nightly OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/unit tests/parity -n auto --dist worksteal -o timeout=3600
	$(RUN) -m pytest -q tests/gpu
	CHATTTS_TEST_EFFORT=nightly $(RUN) -m pytest tests/integration tests/e2e
	@echo "Left out: nothing."

lint: $(VENV)/ready-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(RUN) -m scripts.generate --check

fast-ring: lint
	CHATTTS_TEST_EFFORT=quick OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/unit tests/integration -m "(unit or process) and not slow and not nightly" \
	    -n auto --dist worksteal

promises: $(VENV)/ready-test
	CHATTTS_TEST_EFFORT=quick OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/unit tests/parity tests/integration -m "(slow or parity) and not nightly" \
	    -n auto --dist worksteal
	CHATTTS_TEST_EFFORT=quick $(RUN) -m pytest tests/integration tests/e2e -m "not process and not nightly"

say: $(VENV)/ready-box  ## speak TEXT into hello.wav, without Ray
	$(SERVE) say "$(TEXT)" -o hello.wav

wheel: $(VENV)/ready-box  ## dist/*.whl with native code for every processor of this architecture: it speaks without a compiler
	@$(RUN) -m serve.commands.launch.ship
	@$(RUN) -m pip wheel --quiet --no-deps --wheel-dir dist . \
	    --config-settings=--build-option=--plat-name=$$($(RUN) -m serve.commands.launch.ship --platform)

release: wheel $(VENV)/ready-release  ## dist/release: wheel, sdist, bill of materials, notes, image where buildah is, checksums
	@PYTHON=$(RUN) sh scripts/release.sh dist/release

site: $(VENV)/ready-release  ## the pages with search, the API's document, samples of the voice -> build/site/html
	@$(RUN) -m scripts.build_site build/site
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict --config-file build/site/mkdocs.yml

judge: $(VENV)/ready-test  ## how many words a recogniser mishears in held-out sentences (CHECKPOINT=demo), beside the teacher's own
	$(RUN) -m scripts.evaluate.intelligibility --local --checkpoint $(CHECKPOINT)

bench: $(VENV)/ready-test  ## measure the service beside the ChatTTS package itself: some 17 minutes on two cores
	$(RUN) -m scripts.bench all --quick

chaos: $(VENV)/ready-test  ## mixed traffic on three nodes while faults happen (MINUTES=60, SEED: another one each time), judged to the byte
	$(RUN) -m scripts.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

gpu-check:  ## on a GPU machine: parity, bit-equality, step times, speech, aims -> JSON (GPU_PYTHON=python3, ARGS='--within 580')
	$(GPU_PYTHON) -m scripts.evaluate.gpu_check $(ARGS)

gpu-wheels:  ## what gpu-check needs beside torch, for a GPU machine without a network -> gpu-wheels/ (GPU_PYTHON_VERSION=3.12)
	$(PYTHON) -m pip download --quiet --only-binary=:all: --python-version $(GPU_PYTHON_VERSION) --implementation cp \
	    --platform manylinux2014_x86_64 --constraint constraints.txt --dest gpu-wheels pydantic

generate: $(VENV)/ready-test  ## write the files that are made from others: manifests, dashboards, generated pages
	$(RUN) -m scripts.generate

constraints: $(VENV)/ready-test  ## pin what serving needs in the versions installed here; hashes and licences of the image
	$(RUN) -m scripts.generate.constraints

clean:  ## remove the virtual environment and every cache of the tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The installed project is the folder itself, so that Ray's processes import it wherever they start.
$(VENV)/ready-box: pyproject.toml
	@echo "Installing what serving in one process on a CPU needs into $(VENV), once: 64 packages, 93 MB to download, 400 MB on the disk."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --upgrade pip  # that of Python 3.11 takes minutes to choose among the tests' packages
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/ready-serve: $(VENV)/ready-box
	@echo "Adding Ray to $(VENV), once: 36 packages, 97 MB to download, 300 MB on the disk."
	@$(INSTALL) --editable '.[ray]'
	@touch $@

$(VENV)/ready-release: $(VENV)/ready-box
	@$(INSTALL) --editable '.[site]'
	@touch $@

$(VENV)/ready-serve-torch: $(VENV)/ready-serve
	@echo "Adding PyTorch to $(VENV), once: on Linux with CUDA, 1.7 GB to download, 4.6 GB on the disk (TORCH_INDEX: less)."
	@$(INSTALL) --editable '.[ray,torch]'
	@touch $@

$(VENV)/ready-test: $(VENV)/ready-serve
	@echo "Installing what tests, benchmarks and training need into $(VENV), once: with PyTorch and the ChatTTS package, 6 GB."
	@$(INSTALL) --editable '.[torch,dev]'  # torch named first, or pip fetches the newest PyTorch for silero-vad as well
	@touch $@
