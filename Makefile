# The book and its tests. `make` alone says what there is.

PYTHON ?= python3
PIP_OPTIONS ?=
PYTEST_OPTIONS ?=
PORT ?= 8000

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PICTURE := book/_static/attention.svg
PDF := _build/book.pdf

.DEFAULT_GOAL := help
.PHONY: help book test test-matrix bench pdf links lock export lint serve clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make book    build the book into _build/html (the first time it also makes $(VENV) and installs into it)"
	@echo "make test    build the book, then run every test"
	@echo "make test-matrix   the module's tests and the notebooks on the oldest and the newest libraries"
	@echo "make bench   the benchmarks, against other libraries (forty minutes, on a quiet machine)"
	@echo "make pdf     build the book, then print it into $(PDF) with Chromium"
	@echo "make links   build the book, then ask for every external address in it (needs the network; no test)"
	@echo "make lock    note the versions that are installed now in requirements.lock"
	@echo "make export  write transformer/ from notebooks/"
	@echo "make lint    ruff and mypy"
	@echo "make serve   serve the book on localhost:$(PORT); export and build again whenever a file is saved"
	@echo "make clean   remove what was built; make distclean removes $(VENV) too"
	@echo
	@echo "The usual way: edit notebooks/NAME.py, never transformer/; try it with"
	@echo "  $(RUN) book/tools/run_notebook.py notebooks/NAME.py"
	@echo "then make book, look at it, and make test."
	@echo
	@echo "Variables: PYTHON=python3.12 (3.11 or newer), PIP_OPTIONS='...' (passed to pip install),"
	@echo "           PYTEST_OPTIONS='-k export' (passed to pytest), PORT=8000"

$(INSTALLED): requirements.txt requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: try make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install $(PIP_OPTIONS) -r requirements.txt -c requirements.lock
	$(RUN) -m pip install $(PIP_OPTIONS) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

export: $(INSTALLED)
	$(RUN) book/tools/export.py

# The chart on the README and the front page, and the card of shared links, drawn anew when the model has changed.
$(PICTURE): book/tools/picture.py $(wildcard transformer/pretrained/*) | export
	$(RUN) book/tools/picture.py

book: export $(PICTURE)
	$(VENV)/bin/jupyter-book build -W --keep-going .
	@echo
	@echo "The book is built. Open _build/html/index.html in a browser, or run make serve."

lint: export
	$(RUN) -m ruff check .
	$(RUN) -m mypy

# Two workers: the book is meant for two cores. What shares fixtures stays together (see tests/conftest.py).
test: lint book
	$(RUN) -m pytest -n 2 $(PYTEST_OPTIONS)

test-matrix:
	$(PYTHON) tests/matrix.py oldest newest --pip-options "$(PIP_OPTIONS)"

bench: $(INSTALLED)
	$(RUN) -m pip install $(PIP_OPTIONS) --quiet -r requirements.txt -r tests/benchmarks/requirements.txt
	$(RUN) tests/benchmarks/run.py

# The versions of everything, also of what the pinned packages bring along. A build's name after + is no version.
lock: $(INSTALLED)
	{ head -1 requirements.lock; $(RUN) -m pip freeze --exclude-editable | sed 's/+.*//'; } > requirements.tmp
	mv requirements.tmp requirements.lock

pdf: book
	$(RUN) book/tools/pdf.py --output $(PDF)

links: book
	$(RUN) book/tools/check_links.py

serve: $(INSTALLED)
	$(RUN) book/tools/serve.py --port $(PORT)

clean:
	rm -rf _build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find notebooks transformer book tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
