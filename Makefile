PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
SPARK_SOAK := $(addprefix tests/spark/test_,random_joins.py random_sql.py random_changes.py statement_races.py executors.py)

export PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check format bench soak wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Run the main job and print its results
	@$(BIN)/python examples/demo.py

test: $(READY) ## Run the tests; ARGS="-k bucket" narrows them
	$(BIN)/pytest $(ARGS)

check: $(READY) ## Lint, check the format, the types and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Fix what ruff can fix, and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) ## Measure, and print the numbers
	@$(BIN)/python -m bench

soak: $(READY) ## Many more examples, a death at every step, long races, a failing store, and tables on S3
	PHALANX_PROFILE=soak $(BIN)/pytest tests/properties tests/faults $(SPARK_SOAK) $(ARGS)
	PHALANX_TEST_STORE=s3 $(BIN)/pytest tests/integration $(ARGS)

wheel: $(READY) ## Build a wheel with the Java classes compiled for the installed Spark
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## Remove the environment and everything generated
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when the dependencies change, or the way they are installed.
$(READY): pyproject.toml scripts/bootstrap.sh
	@bash scripts/bootstrap.sh
	@touch $@
