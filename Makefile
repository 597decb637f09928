# Two commands do everything from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PYTEST := $(BIN)/python -m pytest -q --jaxtyping-packages=prodssm,beartype.beartype

.PHONY: demo test lint bench cases clean

.venv/made:
	$(PYTHON) -m venv .venv
	touch $@

# Each stamp stands for one set of extras, installed once and again only when the requirements change.
.venv/demo: .venv/made pyproject.toml constraints.txt
	$(PIP) install -e '.[plot]' -c constraints.txt
	touch $@

.venv/dev: .venv/made pyproject.toml constraints.txt
	$(PIP) install -e '.[plot,dev]' -c constraints.txt
	touch $@

.venv/bench: .venv/made pyproject.toml constraints.txt
	$(PIP) install -e '.[plot,bench]' -c constraints.txt
	touch $@

demo: .venv/demo
	$(BIN)/python examples/uncertain_forecast.py

test: lint
	$(PYTEST) -n 2 tests
	PRODSSM_TEST_BITS=32 $(PYTEST) -n 2 tests
	$(PYTEST) --doctest-modules prodssm -p no:cacheprovider
	$(BIN)/python examples/uncertain_forecast.py --quick

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/bench
	$(BIN)/python benchmarks/covariance_order.py --save benchmarks/results/covariance_order.jsonl --plot docs/images/covariance_order.png
	$(BIN)/python benchmarks/one_step.py --save benchmarks/results/one_step.jsonl --plot docs/images/one_step.png
	$(BIN)/python benchmarks/equal_accuracy.py --save benchmarks/results/equal_accuracy.jsonl --plot docs/images/equal_accuracy.png
	$(BIN)/python scripts/benchmark_tables.py

cases: .venv/dev
	$(BIN)/python scripts/random_cases.py

clean:
	rm -rf .venv output .pytest_cache .ruff_cache .hypothesis
