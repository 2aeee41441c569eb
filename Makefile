# Every target works on a bare machine with make, git and a Python from 3.11 up: it makes the
# virtual environment it needs, once, and again when pyproject.toml changes.

PYTHON ?=
VENV   := .venv
BENCH  := .venv-bench
BIN    := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# pyright's launcher tells of newer versions on every run; the version is pinned in pyproject.toml
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

# What each run did and did not exercise, gathered here to be the last lines of `make test`.
SUMMARY := $(VENV)/test-summary.txt

# Twice as many workers as cores: many tests wait for browsers, servers and killed processes.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all crash soak bench lint docs servers clean
.NOTPARALLEL:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo "  PYTHON=python3.x chooses the interpreter (make clean first if $(VENV) exists)"

demo: $(VENV)/.demo ## two minutes: a shop in three services, a run of bad days, an audit of its books (ARGS="--help")
	@$(BIN)/python -m everkeel.cli demo $(ARGS)

test: $(VENV)/.test ## all tests on this Python, unit and conformance tests on every other one found
	@rm -f $(SUMMARY)
	EVERKEEL_TEST_SUMMARY=$(SUMMARY) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow"
	EVERKEEL_TEST_SUMMARY=$(SUMMARY) $(BIN)/python scripts/other_pythons.py
	@echo; cat $(SUMMARY)

test-all: $(VENV)/.test ## also the slow tests, many more random examples, and coverage
	@rm -f $(SUMMARY) .coverage .coverage.*
	EVERKEEL_TEST_SUMMARY=$(SUMMARY) HYPOTHESIS_PROFILE=thorough $(BIN)/coverage run -m pytest
	$(BIN)/coverage combine -q && $(BIN)/coverage report
	EVERKEEL_TEST_SUMMARY=$(SUMMARY) $(BIN)/python scripts/other_pythons.py --slow
	@echo; cat $(SUMMARY)

crash: $(VENV)/.test ## 500 times kill -9 to producers, relays, consumers, servers, a shop; counts what was lost (nothing)
	@$(BIN)/python tests/crash/campaign.py $(ARGS)
	@$(BIN)/python tests/crash/shop_campaign.py --rounds 4
	@$(BIN)/python tests/crash/shop_campaign.py --rounds 4 --engine postgres --transport redis

SECONDS ?= 600
soak: $(VENV)/.test ## the shop for ten minutes (SECONDS=120: for two); fails if memory or backlog grow
	@$(BIN)/python benchmarks/soak.py --seconds $(SECONDS) $(ARGS)

bench: $(BENCH)/.bench ## side by side with peers, in one run
	@$(BENCH)/bin/python benchmarks/run.py $(ARGS)

lint: $(VENV)/.lint ## ruff, mypy --strict, pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@# both at once: each of them uses one core
	@$(BIN)/mypy & mypy=$$!; $(BIN)/pyright; pyright=$$?; wait $$mypy && exit $$pyright

docs: $(VENV)/.docs ## the site, into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

servers: ## install the real servers the tests use (redis, postgresql, pgbouncer, chromium), from Debian's packages
	@sh scripts/servers.sh

clean: ## everything that can be made again
	rm -rf .venv .venv-* docs/_build build dist .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests scripts docs examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- environments -------------------------------------------------------------------------------
# pip is brought up to date first: --group needs 25.1, and Python 3.11 and 3.12 bring an older one.

define new_venv
	@python=$$(sh scripts/find_python.sh $(PYTHON)) && echo "making $(1) with $$($$python --version)" && \
	  { $$python -m venv --clear $(1) || { rm -rf $(1); exit 1; }; }
	@$(1)/bin/python -m pip install -q --upgrade "pip>=25.1"
endef

$(BIN)/python:
	$(call new_venv,$(VENV))

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install -q -e .
	@touch $@

# What the shop is made with: web services, the control plane with its dashboard, a configuration file, metrics.
$(VENV)/.demo: $(VENV)/.installed
	@$(BIN)/python -m pip install -q -e ".[starlette,uvicorn,httpx2,yaml,prometheus]"
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	@$(BIN)/python -m pip install -q --group test
	@touch $@

# The type checkers read what the tests and the pytest plugin import.
$(VENV)/.lint: $(VENV)/.test
	@$(BIN)/python -m pip install -q --group lint
	@touch $@

# The reference describes the pytest plugin too, which imports pytest.
$(VENV)/.docs: $(VENV)/.test
	@$(BIN)/python -m pip install -q --group docs
	@touch $@

$(BENCH)/bin/python:
	$(call new_venv,$(BENCH))

$(BENCH)/.bench: pyproject.toml benchmarks/requirements.txt | $(BENCH)/bin/python
	@$(BENCH)/bin/python -m pip install -q -e .
	@$(BENCH)/bin/python -m pip install -q -r benchmarks/requirements.txt || \
	  grep -v '^#' benchmarks/requirements.txt | while read -r peer; do \
	    $(BENCH)/bin/python -m pip install -q "$$peer" || echo "cannot install $$peer: its cases are skipped"; done
	@touch $@
