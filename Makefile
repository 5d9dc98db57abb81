# `make train` and `make test` create the virtual environment on first use.

PYTHON ?= python3
VENV ?= .venv
TESTS ?= tests
EXTRAS ?= dev
INSTALLED := $(VENV)/.installed
# Store compiled modules. Otherwise each of the many processes of the tests compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install train test lint docs dist smoke clean

install: $(INSTALLED)  ## create the virtual environment

train: $(INSTALLED)  ## train the default recipe
	$(VENV)/bin/python -m experiments train

test: $(INSTALLED)  ## run the tests; TESTS selects some of them
	$(VENV)/bin/python -m pytest $(TESTS)

lint: $(INSTALLED)  ## run the checks of the pre-commit hooks
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

docs: $(INSTALLED)  ## build the documentation in docs/_build; every warning is an error
	$(VENV)/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . docs/_build/html
	@echo "The documentation is in docs/_build/html/index.html."

dist: $(INSTALLED)  ## build a wheel and a source distribution in dist/
	rm -f dist/distattn_jax-*
	$(VENV)/bin/python -m build

smoke: dist  ## install both files of dist/ into fresh environments, and use them
	PYTHON="$(PYTHON)" .ci/smoke

clean:
	rm -rf $(VENV) build dist docs/_build

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, but $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --no-compile --editable '.[$(EXTRAS)]'
	touch $@
