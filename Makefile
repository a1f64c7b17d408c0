# Two commands to know: `make lab` opens the quickstart with a server live, `make test` proves that it works.
# Both set everything up from nothing but Python 3.11 or later.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODELS := $(VENV)/.models
# Containers often know no other user; Jupyter wants to be told that this is meant.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: lab demo test chromium check bench wheel models clean

lab: $(MODELS)
	$(BIN)/jupyter lab $(AS_ROOT) notebooks/01_quickstart.ipynb

demo: $(MODELS)
	$(BIN)/python notebooks/show.py notebooks/01_quickstart.ipynb

test: $(MODELS)
	$(BIN)/python -m pytest

# For the browser tests, which skip and say so where it is missing.
chromium:
	command -v chromium || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Measured is what is shipped: the compiled wheel, not the checkout.
bench: $(MODELS) wheel
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/compiled dist/tritonnb-*.whl
	PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. $(BIN)/python -m benchmarks

# What every request passes through is compiled (hatch_build.py); this needs a C compiler, nothing else here does.
wheel: $(INSTALLED)
	rm -f dist/tritonnb-*.whl
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m build --wheel --no-isolation

models: $(MODELS)

# torch goes first, alone: it is the largest. rapidocr comes without what it depends on, OpenCV among others: it is
# wanted for its data files.
$(INSTALLED): pyproject.toml binder/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' binder/constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint binder/constraints.txt --editable '.[all]'
	$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python $$(grep '^rapidocr' binder/constraints.txt)
	touch $@

$(MODELS): $(INSTALLED) $(wildcard tritonnb/model_zoo/*.py)
	$(BIN)/python -m tritonnb models model_repository
	touch $@

clean:
	rm -rf $(VENV) build dist docs/figures .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
