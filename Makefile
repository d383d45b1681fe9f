# The checks and the demo, for people and CI alike. `make help` lists the targets.

# Without this, `python -c` in the checkout puts the root on the path, and our validators/ hides the PyPI package.
export PYTHONSAFEPATH := 1

PYTHON ?= python3
BIN := .venv/bin
CASE := sample_models/digits
SITE = $(BIN)/sphinx-build -E -W --keep-going docs build/docs

.DEFAULT_GOAL := help
.PHONY: demo test test-slow test-serve lint types bench bench-slow docs clean help

.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	mkdir -p .dev && ln -sfn .. .dev/modelc
	touch $@

DIGITS := $(CASE).safetensors --model sample_models.digits:build \
	  --samples $(CASE)_samples.npz --input "x[batch=1..8,_,_,_]"

demo: .venv/.stamp ## the digits net in three formats, then ready for TensorRT in INT8, each validated
	$(BIN)/modelc export $(DIGITS) --to torchscript --to onnx --to openvino -o out/demo
	$(BIN)/modelc build-trt $(DIGITS) --int8 --calib $(CASE)_calib --preprocess unit --prepare-only -o out/demo-trt

test: .venv/.stamp ## the quick tests
	$(BIN)/pytest -n 2 -m "not slow"

.venv/.rtx: .venv/.stamp
	-$(BIN)/pip install --quiet -c constraints.txt tensorrt-rtx-cu13 && touch $@

test-slow: .venv/.stamp .venv/.rtx ## the tests that take longer than a second each, NVIDIA's builder among them
	$(BIN)/pytest -m slow

# A tritonserver with an environment of its own: it needs numpy below 2.
build/serve/.stamp: tests/serving_host/requirements.txt
	$(PYTHON) -m venv build/serve
	build/serve/bin/pip install --quiet torch==2.13.0 -r tests/serving_host/requirements.txt
	touch $@

test-serve: .venv/.stamp build/serve/.stamp ## artifacts as NVIDIA's tritonserver serves them
	$(BIN)/pytest -m slow tests/runtimes/test_triton_server.py

lint: .venv/.stamp ## ruff (rules and format), the floors between the rooms, and the links of the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(SITE) -q

types: .venv/.stamp ## mypy, strict
	$(BIN)/mypy

bench: .venv/.stamp ## start-up, INT8, dynamic shapes, cost and faults; the tables go to build/benchmarks
	mkdir -p build/benchmarks
	$(BIN)/python benchmarks/startup.py | tee build/benchmarks/startup.md
	$(BIN)/python benchmarks/int8.py | tee build/benchmarks/int8.md
	$(BIN)/python benchmarks/shapes.py --doc build/benchmarks/shapes.md
	$(BIN)/python benchmarks/cost.py --page build/benchmarks/cost.md
	$(BIN)/python benchmarks/fault_table.py > build/benchmarks/faults.md

bench-slow: .venv/.stamp ## hours: coverage, the judge, debug, the attack set, engines of TensorRT-RTX and published comparisons; the tables go to build/benchmarks
	mkdir -p build/benchmarks
	$(BIN)/python -m modelc.benchmarks.coverage --warm --unstated --against --out build/benchmarks/coverage --write build/benchmarks/coverage.md
	$(BIN)/python -m modelc.benchmarks.judge --out build/benchmarks/judge.jsonl --resume > build/benchmarks/judge.md
	$(BIN)/python -m modelc.benchmarks.debug > build/benchmarks/debug.md
	$(BIN)/python -m modelc.benchmarks.attack --out build/benchmarks/attack > build/benchmarks/attack.md
	$(BIN)/python -m modelc.benchmarks.tensorrt_rtx --out build/benchmarks/tensorrt_rtx --write build/benchmarks/tensorrt_rtx.md
	$(BIN)/python -m modelc.benchmarks.seeds --twice --out build/benchmarks/seeds --write build/benchmarks/seeds.md

docs: .venv/.stamp ## write what comes from code and build the site: build/docs/index.html
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/draw_flow.py
	$(BIN)/python docs/draw_packages.py
	$(SITE)

clean: ## remove what the targets above made, .venv included
	rm -rf .venv .dev .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12
