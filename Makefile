# Two commands do all: `make demo` and `make test`. Both make .venv when it is missing, and can be repeated.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTENSION := $(VENV)/.extension
ENGINES := $(VENV)/.engines
NATIVE := $(wildcard src/firebrick/native/*.c src/firebrick/native/*.h)
# Workers must agree on the order of sets in test names.
PYTEST := PYTHONHASHSEED=0 $(BIN)/python -m pytest
WORKERS ?= 2

.PHONY: demo test test-gpu check fast format lint types layers install clean help bench bench-cpu byo fuzz fuzz-aten train-twice bisect-bugs wild ops ops-grad ops-quick ops-layouts vision models threads null-rewrite other-torch

help: ## Print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(EXTENSION) ## Make .venv, install pinned requirements, build the extension

$(STAMP): requirements.txt requirements-models.txt tools/setup_venv.py
	@"$(PYTHON)" tools/setup_venv.py $(VENV)
	@touch $@

$(EXTENSION): $(STAMP) $(NATIVE) setup.py pyproject.toml
	@echo "==> building the extension (about 10 s)"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . || { echo "error: the extension did not build; 'python3-dev' and a C compiler are needed (Debian: apt-get install g++ python3-dev)"; exit 1; }
	@touch $@

$(ENGINES): $(STAMP) requirements-engines.txt
	@echo "==> installing other engines for tests and comparisons (half a minute)"
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-engines.txt; then touch $@; \
	else echo "note: they could not be installed; what needs them is skipped"; fi

demo: $(EXTENSION) ## Sentence embeddings compiled and compared, then BERT-base beside eager and torch.compile
	@$(BIN)/python examples/embeddings.py
	@$(BIN)/firebrick bench bert

test-gpu: $(EXTENSION) ## Tests, operators, fuzzers and models on a GPU, ten minutes each; PART=tests (ops, fuzz, models) runs one
	@$(BIN)/python tests/gpu/parts.py $(PART)

test: $(EXTENSION) $(ENGINES) ## The whole suite
	@$(PYTEST) -n $(WORKERS) --dist loadgroup tests

check: $(EXTENSION) lint types layers fast ## Lint, types, layers, budgets and the fast tests

lint: $(EXTENSION)
	@echo "==> ruff"
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: $(EXTENSION)
	@echo "==> mypy"
	@$(BIN)/mypy

layers: $(EXTENSION)
	@echo "==> layers"
	@$(BIN)/lint-imports --no-logo

fast: $(EXTENSION)
	@echo "==> budgets and fast tests"
	@$(PYTEST) -n $(WORKERS) -m "not slow and not models and not compiler and not gpu" tests

format: $(EXTENSION) ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(EXTENSION) ## The five models beside eager and torch.compile; results to bench/RESULTS.md
	@$(BIN)/python -m bench.cpu bert minilm gpt2 vit resnet50 $(addprefix --contender ,eager firebrick torch.compile) --warm firebrick --warm torch.compile --markdown bench/RESULTS.md

bench-cpu: $(EXTENSION) $(ENGINES) ## All models (or MODELS="bert lstm") beside every engine for CPUs; results to bench/CPU.md; 35 minutes; Ctrl-C keeps the models before
	@$(BIN)/python -m bench.cpu $(MODELS) --seconds $(or $(SECONDS),1) --markdown bench/CPU.md

byo: $(EXTENSION) $(ENGINES) ## Every "bring your own" method on MiniLM and BERT-base; results to bench/BYO.md
	@$(BIN)/python -m bench.byo minilm bert --markdown bench/BYO.md

clean: ## Remove what was built, not .venv
	rm -rf build src/firebrick/*.so src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

fuzz: $(EXTENSION) ## Random programs, plain against compiled; COUNT and SEED choose them, ONLY a feature that each has
	@$(BIN)/python -m tests.fuzz --count $(or $(COUNT),1000) --seed $(or $(SEED),0) $(if $(ONLY),--only $(ONLY))

models: $(EXTENSION) ## Capture of a hundred small models; results to docs/models.md
	@$(BIN)/python -m tests.models.coverage --markdown docs/models.md

threads: $(EXTENSION) ## 32 threads, 10,000 calls and compiles, then the same in forked children
	@$(BIN)/python -m tests.threads.storm

null-rewrite: $(EXTENSION) ## Take apart and reassemble every function of the standard library, numpy and transformers
	@$(BIN)/python tests/sweeps/null_rewrite.py --run

other-torch: $(EXTENSION) ## The whole suite with another torch in an environment of its own: TORCH=2.11.0, 2.12.1 or 2.14.1
	@test -n "$(TORCH)" || { echo "error: name a version: make other-torch TORCH=2.11.0"; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)-torch-$(TORCH)
	@sed 's/^torch==.*/torch==$(TORCH)/; s/^setuptools==.*/setuptools<82/' requirements.txt > $(VENV)-torch-$(TORCH)/requirements.txt
	@$(VENV)-torch-$(TORCH)/bin/python -m pip install --disable-pip-version-check -r $(VENV)-torch-$(TORCH)/requirements.txt
	@$(VENV)-torch-$(TORCH)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@PYTHONHASHSEED=0 PATH="$(CURDIR)/$(VENV)-torch-$(TORCH)/bin:$$PATH" $(VENV)-torch-$(TORCH)/bin/python -m pytest -n $(WORKERS) --dist loadgroup tests

ops: $(EXTENSION) ## torch's operator database through firebrick; the table goes to bench/OPS.md
	@$(BIN)/python -m tests.ops --markdown bench/OPS.md

ops-quick: $(EXTENSION) ## The first sample of every operator, each dtype: minutes
	@$(BIN)/python -m tests.ops.quick

ops-grad: $(EXTENSION) ## Gradients and second gradients of torch's operator database, float64 and float32; KERNELS=eager without C++ compiles
	@$(BIN)/python -m tests.ops.gradients --kernels $(or $(KERNELS),own)

train-twice: $(EXTENSION) ## Trainings with gradients in their loss beside eager mode and float64; results to bench/TRAIN_TWICE.md
	@$(BIN)/python examples/higher_gradients.py --markdown bench/TRAIN_TWICE.md

ops-layouts: $(EXTENSION) ## Every operator with arguments in every layout, alone and beside a layer and a residual; into bench/OPS.md
	@$(BIN)/python -m tests.ops --layouts --markdown bench/OPS.md

vision: ## Every model builder of torchvision against float64, in an environment of its own; results to bench/VISION.md; an hour
	@"$(PYTHON)" -m venv $(VENV)-vision
	@$(VENV)-vision/bin/python -m pip install --quiet --disable-pip-version-check torch==2.14.1 torchvision==0.29.1 "setuptools<82"
	@$(VENV)-vision/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	@$(VENV)-vision/bin/python tests/sweeps/vision.py --markdown bench/VISION.md

bisect-bugs: $(EXTENSION) ## Fifty-one planted bugs: which of them `firebrick bisect` names; 10 minutes on an idle machine
	@$(BIN)/python -m tests.sweeps.bisect_bugs

wild: ## Small models of other packages against float64, graphs beside torch.compile's, in an environment of its own; results to docs/wild.md; hours, goes on where it was ended
	@"$(PYTHON)" -m venv $(VENV)-wild
	@$(VENV)-wild/bin/python -m pip install --quiet --disable-pip-version-check torch==2.14.1 torchvision==0.29.1 torchaudio transformers timm diffusers torch_geometric sentence-transformers open_clip_torch lightning peft torchao einops kornia monai torchmetrics vit-pytorch x-transformers segmentation-models-pytorch gpytorch torchdiffeq pytorch-msssim "setuptools<82"
	@$(VENV)-wild/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	@$(VENV)-wild/bin/python tests/sweeps/wild.py --markdown docs/wild.md

fuzz-aten: $(EXTENSION) ## Random programs of tensor operations, against eager and the loop interpreter; COUNT and SEED
	@$(BIN)/python -m tests.fuzz_aten --count $(or $(COUNT),1000) --seed $(or $(SEED),0)
