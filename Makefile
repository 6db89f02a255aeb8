# make demo    trains a small GPT-2 on seven worker processes, kills two of them, and compares with one process alone
# make test    linters, types, import rules and tests
# make proof   long random searches, rarer faults: the other half of what CI runs
# make help    the rest
#
# Everything is installed into .venv. PYTHON names the interpreter that makes it; pip reads its settings from the
# environment as always.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Machines without an NVIDIA GPU get this torch first, so that no CUDA packages come with the newest one.
CPU_TORCH := torch==2.13.0
# Processes that tests run in; many tests wait for others to die or be found, so a core has more than one.
PYTEST_WORKERS ?= 3
# Of random searches: the same ones every time, other ones with another SEED. SECONDS is of `make chaos`; it is a
# variable of bash itself, so what the environment has of it is not taken.
ifneq ($(origin SECONDS),command line)
SECONDS := 300
endif
SEED ?= 0
# Of `make dst`.
SEEDS ?= 1000
FIRST ?= 0
# Of `make mutants`.
NUMBER ?= 300

# Tests start many processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-engines test-page proof lint style format docs bench papers chaos soak dst mutants \
	small-world clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train the demo job while killing nodes, and compare with one process training alone
	@$(BIN)/python scripts/demo.py

test: style ## linters, types, import rules and tests: a few minutes
	@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; \
	($(BIN)/lint-imports && $(BIN)/mypy) > "$$said" 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal --hypothesis-seed=$(SEED); tests=$$?; \
	wait $$types; types=$$?; cat "$$said"; exit $$((types | tests))

test-page: $(VENV)/.installed-dev ## the page in a real browser, alert rules by promtool; as root on Debian both are installed
	@if ! (command -v chromedriver && command -v promtool) > /dev/null && [ "$$(id -u)" = 0 ] && \
		command -v apt-get > /dev/null; then \
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
		chromium chromium-driver prometheus) > /dev/null || true; \
	fi
	$(BIN)/python -m pytest -m page -rs tests/ui/dashboard
	$(BIN)/python -m pytest -rs tests/runtime/observers/test_prometheus_page.py

# What is large and needed by few tests, which skip without it, is installed here.
proof: $(VENV)/.installed-dev ## long random searches (schedules, mutations, simulators, chaos), rarer faults
	$(BIN)/python -m pip install --quiet -e ".[wandb,mlflow]" || echo "their tests are left out"
	PLANARIA_PROOF=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal --hypothesis-seed=$(SEED) \
	  -m "proof or hypothesis"
	$(MAKE) dst SEEDS=800 FIRST=200000
	$(MAKE) chaos SECONDS=60

test-engines: $(VENV)/.installed-dev ## real SLURM, Ray and etcd of this machine, installed where that can be
	@if command -v slurmctld > /dev/null && command -v etcd > /dev/null; then true; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy slurm-wlm etcd-server) > /dev/null || \
		echo "slurm-wlm and etcd-server could not be installed: tests of what is missing are left out"; \
	else \
		echo "slurm-wlm or etcd-server is not installed, and cannot be here: tests of what is missing are left out"; \
	fi
	$(BIN)/python -m pip install --quiet -e ".[ray]" || echo "Ray could not be installed: its tests are left out"
	$(BIN)/python -m pytest -m engines -rs tests/engines tests/e2e/test_robustness.py

lint: style ## linters, types and import rules
	$(BIN)/lint-imports
	$(BIN)/mypy

# What takes a second; import rules take several, and types half a minute the first time, so tests run beside them.
style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev ## build the site in docs/_build/html, strictly; its generated parts are written again first
	$(BIN)/python scripts/job_file_reference.py
	$(BIN)/python scripts/cli_reference.py
	$(BIN)/python scripts/thresholds_reference.py
	$(BIN)/python scripts/state_diagram.py
	$(BIN)/sphinx-build -q -W --keep-going -n docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.installed ## the measurements that docs/figures/benchmarks.md describes; takes a while
	$(BIN)/python benchmarks/all.py

papers: $(VENV)/.installed-dev ## write docs/figures/papers.md: papers' tables beside ours; TRACES=FOLDER has recorded traces
	$(BIN)/python benchmarks/papers/page.py $(if $(TRACES),--traces $(TRACES))

chaos: $(VENV)/.installed ## random faults for SECONDS (300), or in many short runs until there were FAULTS; bits compared
	@$(BIN)/python -m scripts.chaos --seed $(SEED) $(if $(FAULTS),--faults $(FAULTS),--seconds $(SECONDS))

soak: $(VENV)/.installed-dev ## hours of a spot trace in virtual time (TRACE=FILE), an hour of chaos on real processes: what grows
	@$(BIN)/python benchmarks/soak.py $(if $(TRACE),--trace $(TRACE)); grew=$$?; \
	$(MAKE) chaos SECONDS=3600 && exit $$grew

mutants: $(VENV)/.installed-dev ## the protocol with NUMBER (300) small changes by machine, one at a time: which of them schedules and tests miss
	$(BIN)/python -m tests.testkit.mutants.command --number $(NUMBER) --seed $(SEED)

dst: $(VENV)/.installed-dev ## random schedules in virtual time: SEEDS (1000) of the simulator from FIRST (0) on, then with shipped workers
	$(BIN)/python -m tests.testkit.dst --seeds $(SEEDS) --first-seed $(FIRST)
	$(BIN)/python -m tests.runtime.worker.dst --seeds $$((($(SEEDS) + 99) / 100)) --first-seed $(FIRST)

small-world: $(VENV)/.installed-dev ## every placement of two faults on every delivery of small jobs; takes a while
	$(BIN)/python -m tests.testkit.small_world

clean: ## remove .venv, caches and build products; run folders stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: a second call installs nothing.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Planaria needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.created
	@if command -v nvidia-smi > /dev/null && nvidia-smi > /dev/null 2>&1; then \
		echo "NVIDIA GPU found: torch comes with CUDA"; \
	else \
		set -x; $(BIN)/python -m pip install --quiet "$(CPU_TORCH)"; \
	fi
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $(VENV)/.installed $@
