# Two commands matter: `make demo` shows the product, `make test` tests it. Each sets .venv up first if it is missing or older
# than pyproject.toml or constraints.txt. Everything else about packages is in those two files.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Twice quiet: errors only. Once leaves warnings about caches and mirrors that a reader can do nothing about.
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install -c constraints.txt
# Two makes at once must not install into one environment: the second waits, then finds the stamp fresh.
LOCK := $(if $(shell command -v flock),flock Makefile)

define LIST_DEV_PACKAGES
import pathlib, tomllib
groups = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["dependency-groups"]
print(*groups["test"], *groups["lint"], sep="\n")
endef
export LIST_DEV_PACKAGES

EXPERIMENTS ?= $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean venv venv-dev

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1:/p' Makefile | awk -F: '{ printf "%-16s%s\n", $$1, $$2 }'

demo: venv  ## record a small run, challenge it, replay it, then catch a cheat
	@$(BIN)/witness demo

# Libraries read their variables once. Tests that record natively pin them for their whole process; tests of exact arithmetic
# want them as they are.
test: venv-dev  ## run the tests on two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/exact
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/exact

lint: venv-dev  ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: venv-dev  ## run the experiments one after another (or EXPERIMENTS="benchmarks/one.py")
	@[ -n "$(EXPERIMENTS)" ] || { echo "no experiments in benchmarks/" >&2; exit 1; }
	@set -e; for experiment in $(EXPERIMENTS); do echo "== $$experiment"; $(BIN)/python "$$experiment"; done

clean:  ## remove the environment, caches and built packages; recorded runs stay
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:  ## set up .venv for use
	@$(LOCK) $(MAKE) --silent --no-print-directory $(VENV)/.ready

venv-dev: venv  ## set up .venv for development
	@$(LOCK) $(MAKE) --silent --no-print-directory $(VENV)/.ready-dev

# torch goes first and alone: the constraint decides its build before any other package has a say.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; PYTHON=... names one")'
	@echo "Setting up $(VENV): the first time a few minutes, and about 1.2 GB of disk (several times that if torch comes with CUDA)."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "  installing torch ..."
	@$(PIP) torch
	@echo "  installing training-witness and what it needs ..."
	@$(PIP) -e '.[http]'
	@touch $@
	@echo "  done."

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "  installing the test and lint packages ..."
	@$(BIN)/python -c "$$LIST_DEV_PACKAGES" > $(VENV)/dev-packages.txt
	@$(PIP) -r $(VENV)/dev-packages.txt
	@touch $@
	@echo "  done."
