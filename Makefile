# Two commands do all: `make train` and `make test`. Both set up their environment first, once.

PYTHON ?= python3
VENV ?= .venv
TESTS ?= tests
INSTALLED := $(VENV)/.installed

.PHONY: train test lint wheel clean

train: $(INSTALLED)  ## environment, installation, the main job
	$(VENV)/bin/python -m experiments train

test: $(INSTALLED)  ## environment, installation, the whole suite
	$(VENV)/bin/python -m pytest $(TESTS)

lint: $(INSTALLED)  ## what the pre-commit hooks check
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

wheel: $(INSTALLED)  ## a wheel in dist/
	$(VENV)/bin/python -m build --wheel

clean:
	rm -rf $(VENV) build dist

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --no-compile --editable '.[dev]'
	touch $@
