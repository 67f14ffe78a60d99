PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
# Classes of Spark that the JVMs of tests map instead of loading them.
CLASSES := .venv/spark-classes.jsa
# The parts of the soak: laws of the pure layers, laws of whole tables, writers that race and die, Spark, and S3.
SOAK_TABLES := $(addprefix tests/properties/test_,table_machine.py draft_machine.py change_feed.py search.py updates.py \
	foreign_namespaces.py three_valued.py hive_laws.py)
SOAK_LAWS := $(filter-out $(SOAK_TABLES),$(sort $(wildcard tests/properties/test_*.py)))
SOAK_SPARK := $(addprefix tests/spark/test_,random_joins.py random_sql.py random_changes.py executors.py statement_races.py) \
	$(addprefix tests/faults/test_,spark_kills.py stream_kills.py row_kills.py rewrite_races.py ingest_deaths.py import_deaths.py)
SOAK_FAULTS := $(filter-out $(SOAK_SPARK),$(sort $(wildcard tests/faults/test_*.py)))
SOAK := PHALANX_PROFILE=soak $(BIN)/pytest

export PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test quick check hooks format bench soak soak-laws soak-tables soak-faults soak-spark soak-s3 wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Run the main job and print its results
	@$(BIN)/python examples/demo.py

test: $(READY) $(CLASSES) ## Run the tests; ARGS="-k bucket" narrows them
	$(BIN)/pytest $(ARGS)

quick: $(READY) ## Run the pure tests with few examples: no Spark, under 90 seconds
	PHALANX_PROFILE=quick $(BIN)/pytest tests/unit tests/conformance $(SOAK_LAWS) $(ARGS)

check: $(READY) ## Check style, format, types, layers and names
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/names.py

hooks: $(READY) ## Run the checks before each commit (git hooks by pre-commit)
	$(BIN)/python -m pip install --quiet "pre-commit>=4,<5"
	$(BIN)/pre-commit install

format: $(READY) ## Fix what ruff can fix, and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) ## Measure, and print the numbers
	@$(BIN)/python -m bench

soak: soak-laws soak-tables soak-faults soak-spark soak-s3 ## Many more examples, a death at every step, long races, and S3

soak-laws: $(READY) ## The part of the soak about planning and predicates
	$(SOAK) $(SOAK_LAWS) $(ARGS)

soak-tables: $(READY) ## The part about whole tables, beside oracles
	$(SOAK) $(SOAK_TABLES) $(ARGS)

soak-faults: $(READY) $(CLASSES) ## The part about writers that race, die and meet damage
	$(SOAK) $(SOAK_FAULTS) $(ARGS)

soak-spark: $(READY) $(CLASSES) ## The part about Spark
	$(SOAK) $(SOAK_SPARK) $(ARGS)

soak-s3: $(READY) $(CLASSES) ## The integration tests on S3
	PHALANX_TEST_STORE=s3 $(BIN)/pytest tests/integration $(ARGS)

wheel: $(READY) ## Build a wheel with the Java classes compiled for the installed Spark
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## Remove the environment and everything generated
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Created again when the dependencies change, or the way they are installed.
$(READY): pyproject.toml scripts/bootstrap.sh
	@bash scripts/bootstrap.sh
	@touch $@

# Tests pass without it, and take longer.
$(CLASSES): $(READY) scripts/archive_classes.py
	@echo "Archiving the classes of Spark for the tests ..."
	@$(BIN)/python scripts/archive_classes.py $@ >$(CLASSES).log 2>&1 || echo "Not archived: see $(CLASSES).log" >&2
