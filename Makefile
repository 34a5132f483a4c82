# The book's commands. `make book` and `make test` need only Python, make and a network.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LISTS := $(wildcard tools/requirements/*.txt)
SITE := _build/html/index.html
SPHINX := -b html -j auto -W --keep-going -q -d _build/doctrees
PROCESSES := -n 3 --dist loadfile --no-loadscope-reorder# one waits while two cores work; a file stays in one; long ones first
EDITIONS := $(addprefix _build/,readers workbook solutions)
PORT ?= 8000
LAB ?=# options of JupyterLab, such as --allow-root or --no-browser
PYTHONS ?= python3.10 python3.14# the oldest and the newest
VERSIONS ?= oldest newest# of all libraries: the bounds of pyproject.toml, and what pip finds
MATRIX := test_model test_schedule test_batching test_tokenization test_files test_translation test_trainer test_cli
SPELLED := *.md book/*.md book/site/*.py book/live/*.py notebooks/*.py tools tests
UNWATCHED := '/([.]|_build|__pycache__)|/notebooks/[^/]*[.]py$$'

.PHONY: help lab workbook book serve pdf publish-check test test-slow test-portable test-matrix check execute export lint clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

# What a reader has changed in these folders stays, also when the book has changed
lab: $(VENV)/lab.done ## open the notebooks in JupyterLab, to run them and change them
	@$(BIN)/python -m tools.editions readers
	@cd _build/readers && ../../$(BIN)/jupyter lab $(LAB) 01_in_ten_minutes.ipynb

workbook: $(VENV)/lab.done ## write the lessons with blanks to fill, or LESSON=03_attention, or LESSON=--solutions
	@$(BIN)/python -m tools.editions workbook $(LESSON)

book: $(VENV)/docs.done ## build the website from the stored outputs
	@$(BIN)/python -m sphinx $(SPHINX) . _build/html
	@echo "The book: file://$(CURDIR)/$(SITE)"

serve: $(VENV)/docs.done ## serve the website on 127.0.0.1 and rebuild when a page changes
	@$(BIN)/python -m sphinx_autobuild --port $(PORT) --re-ignore $(UNWATCHED) $(SPHINX) . _build/html

pdf: book ## print the website as two PDFs, with Chromium
	@$(BIN)/python -m tools.pdf

publish-check: $(VENV)/test.done book ## spelling, links, what others read about pages, sizes; EXTERNAL=1: links to others
	@$(BIN)/python -m codespell_lib $(SPELLED)
	@$(BIN)/python -m pytest -q tests/browser/test_links.py tests/browser/test_publish.py
	@if [ -n "$${EXTERNAL:-}" ]; then $(BIN)/python -m sphinx -b linkcheck -j auto -q -d _build/doctrees . _build/linkcheck; fi

test: $(VENV)/test.done ## check, test and run every notebook, in ten to fifteen minutes on two cores
	@$(BIN)/python -m tools.check & tests=0; \
	$(BIN)/python -m pytest --nbval $(PROCESSES) -m "not slow" || tests=$$?; \
	wait $$!; exit $$tests

test-slow: $(VENV)/test.done ## more seeds, every variant, a training in full; the built site in a browser
	@$(BIN)/python -m pytest $(PROCESSES) -m slow --hypothesis-profile nightly
	@$(BIN)/python -m pytest $(PROCESSES) tests/browser

test-portable: $(VENV)/test.done ## the notebooks as eight other machines run them, some seven minutes each; SETTING=moved-1
	@$(BIN)/python -m tools.portable $(SETTING)

# Torch as pip finds it: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu takes the small builds
test-matrix: ## tests with the oldest and the newest Python and libraries, as far as they are there
	@mkdir -p _build/matrix
	@sed -nE 's/^    "([a-z]+)>=([0-9.]+)",$$/\1==\2/p' pyproject.toml > _build/matrix/oldest.txt
	@: > _build/matrix/newest.txt
	@for python in $(PYTHONS); do for versions in $(VERSIONS); do \
	  $$python -c '' 2>/dev/null || { echo "$$python: not installed"; continue; }; \
	  venv=_build/matrix/$$python-$$versions; $$python -m venv $$venv; \
	  $$venv/bin/python -m pip install -q . pytest hypothesis --constraint _build/matrix/$$versions.txt \
	    || { echo "$$python, $$versions versions: cannot be installed"; continue; }; \
	  echo "$$python, $$versions versions:"; \
	  $$venv/bin/python -m pytest -q -m "not slow" $(MATRIX:%=tests/%.py); \
	done; done

check: $(VENV)/test.done ## script = notebook = package, import law, ruff, mypy
	@$(BIN)/python -m tools.check

execute: $(VENV)/test.done ## run the changed notebooks, or NOTEBOOK=03_attention, or NOTEBOOK=--all
	@$(BIN)/python -m tools.execute $(NOTEBOOK)

export: $(VENV)/test.done ## write the package from the notebooks, or the module of NOTEBOOK=03_attention
	@$(BIN)/python -m tools.export $(NOTEBOOK)

lint: $(VENV)/test.done ## format and mend what can be mended
	@$(BIN)/python -m ruff check --fix --quiet . || true
	@$(BIN)/python -m ruff format --quiet .

clean: ## remove what was built, but no notebooks that readers may have changed
	@rm -rf $(filter-out $(EDITIONS),$(wildcard _build/*)) $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed" if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m venv $(VENV)

# The site needs no torch: it is built from the outputs that the notebooks store
$(VENV)/docs.done: $(BIN)/python requirements.txt $(LISTS)
	@echo "Installing what the site needs ..."
	@$(PIP) install --requirement tools/requirements/docs.txt --constraint requirements.txt
	@touch $@

$(VENV)/lab.done: $(BIN)/python requirements.txt $(LISTS) pyproject.toml
	@echo "Installing what the notebooks need, and JupyterLab ..."
	@$(PIP) install --requirement tools/requirements/lab.txt --editable ".[notebooks]" --constraint requirements.txt
	@touch $@

$(VENV)/test.done: $(BIN)/python requirements.txt $(LISTS) pyproject.toml
	@echo "Installing what the notebooks and tests need ..."
	@$(PIP) install --requirement requirements.txt
	@$(PIP) install --no-deps --editable .
	@touch $@ $(VENV)/docs.done
