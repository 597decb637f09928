# Two commands do everything from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider
# Where this is set, every process parses all of JAX again.
unexport PYTHONDONTWRITEBYTECODE
# Rooms whose numbers depend on the precision.
NUMERICS := tests/beliefs tests/networks tests/methods tests/data tests/models
# Rooms whose slow tests train; they run beside the others.
TRAINING := tests/training tests/estimators tests/baselines tests/evaluation

.PHONY: demo test unit versions test-all bench experiments results cases docs tutorials dist clean

.venv/made:
	$(PYTHON) -m venv .venv
	touch $@

# Each stamp stands for one set of extras, installed once and again only when the requirements change.
.venv/demo: .venv/made pyproject.toml constraints.txt
	$(PIP) install --no-compile -e '.[plot]' -c constraints.txt
	touch $@

.venv/test: .venv/made pyproject.toml constraints.txt
	$(PIP) install --no-compile -e '.[plot,test]' -c constraints.txt
	touch $@

.venv/dev: .venv/made pyproject.toml constraints.txt
	$(PIP) install --no-compile -e '.[plot,dev]' -c constraints.txt
	touch $@ .venv/test .venv/docs

.venv/docs: .venv/made pyproject.toml constraints.txt
	$(PIP) install --no-compile -e '.[docs]' -c constraints.txt
	touch $@

.venv/bench: .venv/made pyproject.toml constraints.txt
	$(PIP) install --no-compile -e '.[plot,bench]' -c constraints.txt
	touch $@

demo: .venv/demo
	$(BIN)/python examples/tanks.py

# At most 12 minutes on two cores: two processes at a time, the long ones first.
test: .venv/test
	$(MAKE) --no-print-directory -j 2 numerics others single default-xla lint

# The same without lint and types, for other versions of Python and of what is needed; `make versions` runs it for all of them.
unit: .venv/test
	$(MAKE) --no-print-directory -j 2 numerics others single default-xla

versions: .venv/made
	$(BIN)/python scripts/versions.py

# Everything: slow suites, golden file, smoke runs of examples and experiments. At most 60 minutes.
test-all: test
	$(MAKE) --no-print-directory -j 2 slow slow-training single-slow smoke

.PHONY: numerics others single default-xla lint slow slow-training single-slow smoke

numerics: .venv/test
	$(PYTEST) -m "not slow" $(NUMERICS)

others: .venv/test
	$(PYTEST) -m "not slow" tests $(addprefix --ignore=,$(NUMERICS))

single: .venv/test
	PRODSSM_TEST_BITS=32 $(PYTEST) -m "not slow" $(NUMERICS)

# With the compiler pipeline that users have.
default-xla: .venv/test
	PRODSSM_TEST_XLA=default $(PYTEST) -m "default_xla and not slow" tests

slow: .venv/test
	$(PYTEST) -m slow tests $(addprefix --ignore=,$(TRAINING))

slow-training: .venv/test
	$(PYTEST) -m slow $(TRAINING)

single-slow: .venv/test
	PRODSSM_TEST_BITS=32 $(PYTEST) -m slow $(NUMERICS)

smoke: .venv/test
	$(BIN)/python scripts/smoke.py

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/bench
	for name in covariance_order one_step equal_accuracy filter stream global train mixture; do \
		$(BIN)/python benchmarks/$$name.py --save benchmarks/results/$$name.jsonl --plot docs/images/$$name.png || exit 1; \
	done
	$(BIN)/python benchmarks/compile.py --save benchmarks/results/compile.jsonl
	$(BIN)/python benchmarks/import_time.py --save benchmarks/results/import_time.jsonl
	$(BIN)/python benchmarks/scale.py --save benchmarks/results/scale.jsonl
	$(BIN)/python benchmarks/automatic.py --all-cores
	$(BIN)/python scripts/benchmark_tables.py

# Resumable: rows that are in experiments/results already are not made again.
experiments: .venv/demo
	for name in recipe kink filtering mocap uci budget defaults small_regression sysid runtime; do \
		$(BIN)/python experiments/$$name.py --jobs 2 || exit 1; \
	done
	for name in defaults small_regression; do $(BIN)/python experiments/$$name.py --report --jobs 2 || exit 1; done

# Every table and figure of the pages in docs, from the rows that are there.
results: .venv/demo
	$(BIN)/python experiments/figures.py
	$(BIN)/python scripts/result_tables.py

cases: .venv/test
	$(BIN)/python scripts/random_cases.py

# The site of the documentation, output/site/index.html. It needs no network; its search works where it is served. Warnings are
# errors.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The pages of docs/tutorials: runs the scripts of examples/tutorials, a few minutes.
tutorials: .venv/docs
	$(BIN)/python scripts/tutorials.py

# The wheel and the sdist, checked as the release does.
dist: .venv/dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf .venv .cache dist output .pytest_cache .ruff_cache .hypothesis
