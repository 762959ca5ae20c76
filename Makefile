# Every target works from a fresh clone: it installs what it needs, from the locks, into .venv.
# The gates themselves are listed in scripts/check.py.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
, := ,
BIN := .venv/bin

# The same answer on a laptop and in CI: no colour codes in logs.
export NO_COLOR := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Servers are killed on purpose: gRPC's own notices of it are no findings.
export GRPC_VERBOSITY ?= ERROR

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install everything into .venv, from the locks; does nothing when nothing changed
	@PYTHON=$(PYTHON) scripts/setup.sh

.PHONY: demo
demo: setup ## Kill a server amid chat, twice, and count every event; CHAT=file.jsonl PROFILE=standard|scylla
	@$(if $(filter standard scylla,$(PROFILE)),$(BIN)/python -m tests.engines run \
			$(if $(filter standard,$(PROFILE)),--only redis$(,)etcd$(,)kafka)) \
		$(BIN)/python -m qimd.app.demo $(if $(PROFILE),--profile $(PROFILE)) \
		$(if $(CHAT),--chat $(CHAT))

.PHONY: test
test: setup ## All gates and all tests, with a summary; the engines run meanwhile
	@$(BIN)/python -m tests.engines run $(BIN)/python scripts/check.py lint contract test

.PHONY: engines
engines: setup ## Install and start the real engines, or those of NAMES; print their addresses
	@$(BIN)/python -m tests.engines up $(NAMES)

.PHONY: engines-stop
engines-stop: setup ## Stop the engines
	@$(BIN)/python -m tests.engines down $(NAMES)

.PHONY: chaos
chaos: setup ## Kill, stop and cut off every role on the real engines, and tell what was counted
	@$(BIN)/python -m tests.engines run \
		$(BIN)/pytest -o faulthandler_timeout=1200 tests/e2e/engines --chaos

.PHONY: sim
sim: setup ## Simulate SEEDS worlds from number FROM on; MUTANTS=1 hunts broken builds; SEED=k tells one
	@$(BIN)/python -m tests.sim --seeds $(or $(SEEDS),2000) --from $(or $(FROM),0) \
		$(if $(MUTANTS),--mutants) $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: setup ## Measure everything beside raw engines (a quarter of an hour); NAMES="codec push" some
	@$(BIN)/python -m bench $(NAMES)

.PHONY: check-contract
check-contract: setup ## The contract gates alone: buf, generated code, goldens
	@$(BIN)/python scripts/check.py contract

.PHONY: lint
lint: setup ## Format, style, types and import rules
	@$(BIN)/python scripts/check.py lint

.PHONY: models
models: setup ## Explore the exhaustive models, and show what each rule is for
	@$(BIN)/python -m tests.models

.PHONY: property
property: setup ## Draw EXAMPLES new cases for each state machine of the ports
	@QIM_PROPERTY_EXAMPLES=$(or $(EXAMPLES),200) $(BIN)/pytest tests/property

.PHONY: fuzz
fuzz: setup ## Fuzz what reads untrusted bytes for SECONDS in all; KEEP=1 keeps new inputs
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(if $(KEEP),--keep)

.PHONY: gen
gen: setup ## Regenerate gen/ and compat/drivers/es/gen from proto/
	@scripts/generate.sh gen compat/drivers/es/gen

.PHONY: fmt
fmt: setup ## Format the Python and the proto files
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/buf format --write

.PHONY: lock
lock: setup ## Resolve the lock files anew from pyproject.toml
	@scripts/lock.sh

.PHONY: clean
clean: ## Remove what setup and the tools made
	if [[ -x $(BIN)/python ]]; then $(BIN)/python -m tests.engines down; fi
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf compat/drivers/es/node_modules
	find services gen compat tests scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
