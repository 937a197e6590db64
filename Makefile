PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: help demo test soak lint format bench docs clean

help:
	@echo "make demo    set up, train a model on real digits, then a study of 48 trials, and show the leaderboard"
	@echo "make test    set up and run all tests"
	@echo "make soak    run the whole crash and fuzz matrices"
	@echo "make lint    ruff and mypy"
	@echo "make bench   benchmarks, as ratios measured in one run"
	@echo "make docs    build the documentation into site/"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("manyfit needs Python 3.11 or later, but $(PYTHON) is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core
	@test -e demo/runs/digits-mlp/config.yaml || $(BIN)/manyfit init demo
	$(BIN)/manyfit train demo/runs/digits-mlp
	@echo
	$(BIN)/manyfit sweep demo/studies/digits
	@echo
	@echo "Look at:"
	@echo "  demo/src/models.py                          the model"
	@echo "  demo/runs/digits-mlp/config.yaml            what was trained, and how"
	@echo "  demo/runs/digits-mlp/reports/test.csv       every test image: target, prediction, confidence, loss"
	@echo "  demo/studies/digits/study.yaml              which variants were compared"
	@echo "  $(BIN)/manyfit status demo/studies/digits   the leaderboard, at any time"
	@echo "  $(BIN)/tensorboard --logdir demo/runs       the curves"
	@echo "  $(BIN)/manyfit sweep demo/studies/digits search.seeds=3      train one more seed of those at the top"

# Tests start hundreds of processes, which read the byte code of the package from the cache. They write none: tests
# change modules within a second, which Python's cache does not notice.
test: export PYTHONDONTWRITEBYTECODE := 1
test: $(VENV)/.dev
	$(BIN)/python -m compileall -q -j 2 src
	$(BIN)/pytest -n 4 --dist worksteal -m "not soak"

soak: export PYTHONDONTWRITEBYTECODE := 1
soak: $(VENV)/.dev
	$(BIN)/python -m compileall -q -j 2 src
	MANYFIT_PROFILE=soak $(BIN)/pytest -n 2 --timeout 3600 -m "not soak" tests/config/test_properties.py tests/data tests/store tests/run/test_properties.py
	$(BIN)/pytest -n 3 --dist worksteal --timeout 3600 -m soak

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install -q -c constraints.txt -e '.[bench]'
	@touch $@

bench: $(VENV)/.bench
	@for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

clean:
	rm -rf $(VENV) build dist site demo .pytest_cache .mypy_cache .ruff_cache
