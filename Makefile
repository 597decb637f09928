# Two commands do everything from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Where this is set, every process parses all of JAX again.
unexport PYTHONDONTWRITEBYTECODE
# What float32 could break, and the rooms right above; the rest says the same in any precision.
NUMERICS := tests/methods $(addprefix tests/test_,$(addsuffix .py,linalg gaussian weights activations layers network inference \
	objective checking review))
SINGLE := $(filter-out tests/test_objective.py tests/test_checking.py,$(NUMERICS))  # these add up what the others compute
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider
# Types and shapes are checked while tests run, which takes time: of each room by its own tests, in one precision.
TYPED := $(PYTEST) --jaxtyping-packages=prodssm,beartype.beartype
UPSTAIRS := $(addprefix prodssm.,answers assembly batches checking datasets estimators frames held_out metrics mixture persistence plots \
	regression regressor series subspace training units)
COMMA := ,
EMPTY :=
TYPED_UPSTAIRS := $(PYTEST) --jaxtyping-packages=$(subst $(EMPTY) $(EMPTY),$(COMMA),$(UPSTAIRS)),beartype.beartype
# Most of a test is the compiler's time: compile lightly, and nothing twice. `make demo` compiles as users do.
# XLA's newer emitters of fused loops take most of it; the older ones compile the same programs in a third of the time.
LIGHTLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
test: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.venv/compiled
test: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
test: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1

.PHONY: demo test bench experiments cases clean

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
	touch $@ .venv/test

.venv/bench: .venv/made pyproject.toml constraints.txt
	$(PIP) install --no-compile -e '.[plot,bench]' -c constraints.txt
	touch $@

demo: .venv/demo
	$(BIN)/python examples/learn_kink.py

# Two at a time, the long ones first; each is one process, so that what is traced for one test serves the others.
test: .venv/test
	$(MAKE) --no-print-directory -j 2 upstairs numerics single smoke lint doctests

.PHONY: upstairs numerics single smoke lint doctests

upstairs: .venv/test
	$(LIGHTLY) $(TYPED_UPSTAIRS) tests $(addprefix --ignore=,$(NUMERICS))

numerics: .venv/test
	$(LIGHTLY) $(TYPED) $(NUMERICS)

single: .venv/test
	$(LIGHTLY) PRODSSM_TEST_BITS=32 $(PYTEST) $(SINGLE)

# A few iterations of everything that is run by hand.
QUICKLY := examples/uncertain_forecast.py examples/learn_kink.py $(addprefix experiments/,$(addsuffix .py,recipe kink filtering \
	sysid sysid_tries uci))

smoke: .venv/test
	$(LIGHTLY) $(BIN)/python scripts/smoke.py $(QUICKLY)

doctests: .venv/test
	$(LIGHTLY) $(PYTEST) --doctest-modules prodssm

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/bench
	$(BIN)/python benchmarks/covariance_order.py --save benchmarks/results/covariance_order.jsonl --plot docs/images/covariance_order.png
	$(BIN)/python benchmarks/one_step.py --save benchmarks/results/one_step.jsonl --plot docs/images/one_step.png
	$(BIN)/python benchmarks/equal_accuracy.py --save benchmarks/results/equal_accuracy.jsonl --plot docs/images/equal_accuracy.png
	$(BIN)/python benchmarks/filter.py --save benchmarks/results/filter.jsonl --plot docs/images/filter.png
	$(BIN)/python benchmarks/stream.py --save benchmarks/results/stream.jsonl --plot docs/images/stream.png
	$(BIN)/python benchmarks/global.py --save benchmarks/results/global.jsonl --plot docs/images/global.png
	$(BIN)/python benchmarks/train.py --save benchmarks/results/train.jsonl --plot docs/images/train.png
	$(BIN)/python scripts/benchmark_tables.py

# Resumable: rows that are in experiments/results already are not made again.
experiments: .venv/demo
	$(BIN)/python experiments/recipe.py
	$(BIN)/python experiments/recipe.py --weights global
	$(BIN)/python experiments/kink.py
	$(BIN)/python experiments/filtering.py
	$(BIN)/python experiments/sysid.py --select
	$(BIN)/python experiments/sysid_tries.py --blocks
	$(BIN)/python experiments/sysid_tries.py --blended
	$(BIN)/python experiments/sysid.py
	$(BIN)/python experiments/sysid_tries.py
	$(BIN)/python experiments/sysid_tries.py --pools
	$(BIN)/python experiments/sysid_tries.py --eighths
	$(BIN)/python experiments/uci.py
	$(BIN)/python scripts/result_tables.py

cases: .venv/test
	$(BIN)/python scripts/random_cases.py

clean:
	rm -rf .venv output .pytest_cache .ruff_cache .hypothesis
