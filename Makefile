# Everything sets itself up: Python 3.11 or newer, git and make are all that must be there.
#   make run     the main study on the bundled catalog; ends with a table and the path of the report
#   make test    the fast tests
# PYTHON=python3.13 chooses the interpreter, JOBS=4 the processes of the tests.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
STUDY ?= optimize/tokens-per-megawatt.toml
RUN ?= runs/$(basename $(notdir $(STUDY)))

# A pyenv shim may stand for a version that is installed but not selected: then the installed one is taken.
INTERPRETER := $(shell for p in "$(PYTHON)" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin/"$(notdir $(PYTHON))"; do \
	"$$p" -c '' 2>/dev/null && { echo "$$p"; break; }; done)

# The environment is made anew when the interpreter, the needs or the pins change. Each stamp is a set of packages.
VERSION := $(shell "$(INTERPRETER)" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
NEEDS := pyproject.toml constraints.txt
STAMPS := $(VENV)/.codesign-$(VERSION)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt

.PHONY: run test test-slow lint format bench docs clean help
.DELETE_ON_ERROR:

run: $(STAMPS)-run
	@resume=; test -e $(RUN)/environment.json && ! test -e $(RUN)/summary.json && resume=--resume; \
	set -x; $(VENV)/bin/codesign optimize $(STUDY) --out $(RUN) $$resume

test: $(STAMPS)-test
	$(VENV)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile

test-slow: $(STAMPS)-slow
	$(VENV)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile -m slow

lint: $(STAMPS)-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

format: $(STAMPS)-dev
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench: $(STAMPS)-run
	$(VENV)/bin/codesign bench

docs: $(STAMPS)-run
	$(VENV)/bin/python docs/render_glossary.py
	$(VENV)/bin/python docs/render_accuracy.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find codesign tests -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n '2,4s/^# \{0,1\}//p' Makefile

$(STAMPS)-run: $(NEEDS)
	@test -n "$(VERSION)" || { echo "make: $(PYTHON) is not there; name a Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@"$(INTERPRETER)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is Python $(VERSION), 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	rm -rf $(VENV)
	@"$(INTERPRETER)" -m venv $(VENV) || { echo "make: $(PYTHON) cannot make an environment; on Debian and Ubuntu install python3-venv" >&2; exit 2; }
	@echo "installing codesign and what it needs into $(VENV) (a few hundred MB, some minutes)"
	$(PIP) --editable .
	@touch $@

$(STAMPS)-test: $(STAMPS)-run
	$(PIP) --editable '.[test]'
	@touch $@

$(STAMPS)-slow: $(STAMPS)-test
	$(PIP) --editable '.[test,search]'
	@touch $@

$(STAMPS)-dev: $(STAMPS)-test
	$(PIP) --editable '.[dev]'
	@touch $@
