# Everything a person or CI runs. `make` alone explains itself.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STACK ?= dev
LAB_STATE ?= .lab
ARGS ?=
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
# A third of the time tests wait for the world's clock, so there are more of them at a time than cores.
JOBS ?= $(shell echo $$(($(CORES) < 4 ? $(CORES) * 3 / 2 : 6)))
# Tests that share a lab stay together (tests/conftest.py). They go out in order, the long ones first, so that no worker is left over.
PYTEST := -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder
LONG_FIRST := tests/faults tests/engine tests/stories tests/servers tests/properties tests/vectors tests/unit

# Where bytecode is forbidden (many containers), every process of every engine run would compile Pulumi's SDKs again: over a second each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help lab lab-up lab-down lab-destroy lab-status test test-unit test-quick test-engine test-long check preview up destroy refresh doctor \
	tools lint format docs bench lock clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo; echo "  Variables: STACK=$(STACK) (stack to work on), ARGS='…' (passed on to pulumi or pytest), JOBS=$(JOBS) (test files in parallel)"

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked Python packages into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

tools: $(VENV)/.ready ## Build or find the toolchain (first time: about 20 minutes on 2 cores)
	@$(PY) -m lab.toolchain ensure --state $(LAB_STATE)

doctor: $(VENV)/.ready ## Show each tool, its version and where it comes from
	@$(PY) -m lab.toolchain doctor

lab: $(VENV)/.ready ## Run the main job end to end on the embedded lab
	@$(PY) -m lab play --state $(LAB_STATE) $(ARGS)

lab-up: $(VENV)/.ready ## Start the lab only: control plane and simulated machines
	@$(PY) -m lab up --state $(LAB_STATE) $(ARGS)

lab-status: $(VENV)/.ready ## Show what the lab is doing
	@$(PY) -m lab status --state $(LAB_STATE)

lab-destroy: $(VENV)/.ready ## `pulumi destroy` of the stack on the lab
	@$(PY) -m lab pulumi --state $(LAB_STATE) destroy --yes --skip-preview

lab-down: $(VENV)/.ready ## Stop the lab, with all its processes and ports
	@$(PY) -m lab down --state $(LAB_STATE)

check: $(VENV)/.ready ## Check a stack file offline: make check STACK=prod
	@$(PY) -m cozystack_iac check Pulumi.$(STACK).yaml $(ARGS)

preview: $(VENV)/.ready ## The plan gate: rules, live checks, policies
	@$(PY) -m cozystack_iac.runner preview --stack $(STACK) $(ARGS)

up: $(VENV)/.ready ## Install, or continue where an earlier run stopped
	@$(PY) -m cozystack_iac.runner up --stack $(STACK) $(ARGS)

refresh: $(VENV)/.ready ## Show and record drift
	@$(PY) -m cozystack_iac.runner refresh --stack $(STACK) $(ARGS)

destroy: $(VENV)/.ready ## Remove the stack's resources; machines and data on disks are kept
	@$(PY) -m cozystack_iac.runner destroy --stack $(STACK) $(ARGS)

test: tools lint ## All tests
	@$(PY) $(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(LONG_FIRST)) $(ARGS)

test-unit: $(VENV)/.ready ## Fast tests: pure code and mocks
	@$(PY) $(PYTEST) tests/unit $(ARGS)

test-quick: $(VENV)/.ready ## All tests that need neither engine nor toolchain, including full installs in memory
	@$(PY) $(PYTEST) tests/stories tests/servers tests/properties tests/vectors tests/unit $(ARGS)

test-engine: tools ## The real engine on the lab
	@$(PY) $(PYTEST) tests/engine tests/faults $(ARGS)

test-long: tools ## Everything, including all cases of the matrices of which `test` runs a sample
	@COZYSTACK_IAC_TEST_LONG=1 $(PY) $(PYTEST) $(LONG_FIRST) $(ARGS)

lint: $(VENV)/.ready ## Formatting, lint and types
	@$(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/ruff check --quiet . && $(VENV)/bin/mypy

format: $(VENV)/.ready ## Format the code
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

docs: $(VENV)/.ready ## Generate docs/settings.md, docs/findings.md and the schema
	@$(PY) -m cozystack_iac docs

bench: $(VENV)/.ready ## Benchmarks, as ratios to a floor measured in the same run
	@for each in $(filter-out __init__,$(basename $(notdir $(wildcard bench/*.py)))); do $(PY) -m bench.$$each || exit 1; done

lock: ## Update requirements.lock from pyproject.toml
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--all-extras pyproject.toml -o requirements.lock

clean: lab-down ## Remove the lab's state and the virtual environment
	@rm -rf $(LAB_STATE) $(VENV)
