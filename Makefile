# Recollect. `make` alone lists what there is. Needs Python 3.11 or newer, make and a package index; nothing else.

PYTHON ?= python3
BIN := .venv/bin
MANAGE := $(BIN)/python manage.py
PYTEST := $(BIN)/python -m pytest
# The kernels can be chosen: RECOLLECT_KERNELS=avx2 make bench. OpenBLAS would obey these and take slow kernels of its own.
BENCH := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m inference.bench --kernels $(or $(RECOLLECT_KERNELS),auto)
# `make check TESTS=slow` runs the slow tests only, for when `make test` has just passed.
TESTS ?= all
# Two processes share the tests. Many of these wait (for a browser, a server, a child), so two keep two cores busy.
WORKERS ?= 2
# Terminal commands speak English only; where a sentence stands in the source would change with every commit.
MESSAGES := --no-wrap --no-location --no-obsolete $(foreach path,.venv staticfiles var docs tests chatapp/management/*,-i '$(path)')

# Each of the processes that tests and server start would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-postgres test-slow check lint types floors docs format messages bench bench-peers pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/base: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Recollect needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 setup")'
	@echo "Installing what requirements.txt lists into .venv (once) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/dev: requirements-dev.txt .venv/base
	@echo "Installing what the tests need into .venv (once) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# Under names with a digest, compressed; made again when one of ours is newer, or when the packages that bring others are.
staticfiles/staticfiles.json: .venv/base $(shell find static -type f)
	@$(MANAGE) collectstatic --no-input --verbosity 0

setup: .venv/base staticfiles/staticfiles.json ## Environment, dependencies, default model, database (serve and test call it)
	@$(MANAGE) fetch_model
	@$(MANAGE) migrate --no-input --verbosity 0

serve: setup ## Run Recollect on 127.0.0.1:8000
	@exec $(MANAGE) serve

test: .venv/dev setup ## All quick tests: SQLite, then the database tests on PostgreSQL
	$(BIN)/python -m tests.compile_kernels
	$(PYTEST) -n $(WORKERS) -m "not slow"
	$(MAKE) test-postgres

test-postgres: .venv/dev setup ## The database tests on PostgreSQL alone
	$(BIN)/python -m tests.postgres $(PYTEST) -n $(WORKERS) tests/chatapp -m "not slow and not model"

test-slow: .venv/dev setup ## The tests that take longer, and all properties on more examples
	$(PYTEST) -n $(WORKERS) -m "slow or hypothesis" --hypothesis-profile=thorough

ifeq ($(TESTS),slow)
check: lint types floors docs test-slow ## Lint, types, floors, docs, tests: what CI runs
else
check: lint types floors docs test test-slow
endif

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

floors: .venv/dev
	$(BIN)/lint-imports

docs: .venv/dev
	$(PYTEST) tests/test_docs.py
	$(MANAGE) makemigrations --check --dry-run

format: .venv/dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

messages: .venv/base ## Take new sentences into locale/ and compile it (needs GNU gettext)
	@command -v msgmerge >/dev/null || { echo "make messages needs GNU gettext: apt install gettext, or brew install gettext"; exit 1; }
	$(MANAGE) makemessages -d django -l zh_Hans $(MESSAGES)
	$(MANAGE) makemessages -d djangojs -l zh_Hans $(MESSAGES)
	$(MANAGE) compilemessages -i .venv

bench: setup ## Measure: the engine beside what this machine can do, its start, its prefix cache, and what the app adds
	$(BENCH) --suite roofline
	$(BENCH) --suite start
	$(BENCH) --suite prefix
	$(MANAGE) bench_overhead
	$(MANAGE) bench_planning

bench-peers: setup ## Our engine beside llama.cpp and OpenVINO GenAI in one run, with ratios and targets
	$(BIN)/python -m tests.peers.compare

pictures: .venv/dev setup ## Make the README's pictures anew from the running product
	$(BIN)/python docs/make_pictures.py

clean: ## Remove the environment and caches; the data in var/ stays
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
