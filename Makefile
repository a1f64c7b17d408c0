# Two commands to know: `make lab` opens the quickstart with a server live, `make test` proves that it works.
# Both set everything up from nothing but Python 3.11 or later.

# Tests start hundreds of processes, which would all compile the same modules; containers often have this set.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODELS := $(VENV)/.models
COMPILED := build/.compiled
TENSORFLOW := build/tensorflow
RAY := build/ray
FUZZ := build/fuzz
SECONDS ?= 60
SITE := build/site
# Runs targets at the same time, also if one fails; the output of each is shown when it ends.
TOGETHER := $(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
# Tests of one file run in the same process, since they share fixtures.
SHARED_BY := --dist=loadfile --numprocesses
FAST := --hypothesis-profile=fast -m "not (browser or kernel or wheel or isolated or slow)"
# Containers often have no other user, and Jupyter does not run as root without this option.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: lab demo test test-browser test-others test-fast test-tensorflow test-ray fuzz chromium node check docs site bench bench-report wheel models clean

lab: $(MODELS) $(COMPILED)
	$(BIN)/jupyter lab $(AS_ROOT) notebooks/01_quickstart.ipynb

demo: $(MODELS) $(COMPILED)
	$(BIN)/python notebooks/show.py notebooks/01_quickstart.ipynb

# Four pytest processes for two cores, since tests often wait. Those in a browser share one, and one JupyterLab.
test: $(MODELS) $(COMPILED)
	$(TOGETHER) test-browser test-others

test-browser: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest -m browser

test-others: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=3 -m "not browser"

# For the edit loop: without the tests that start a browser, a kernel, a build or isolated models, or take seconds.
test-fast: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=2 $(FAST)

# TensorFlow is large, and not in the extra `all`: its tests run in an environment of their own, where they do not skip.
test-tensorflow: $(TENSORFLOW)/.installed
	$(TENSORFLOW)/bin/python -c "import tensorflow"
	PYTHONPATH=. $(TENSORFLOW)/bin/python -m pytest tests/backends/test_tensorflow.py
	PYTHONPATH=. $(TENSORFLOW)/bin/python -m pytest tests/project/test_how_to.py -k tensorflow

# Ray starts a dozen processes: its tests run in an environment of their own, where they do not skip.
test-ray: $(RAY)/.installed
	$(RAY)/bin/python -c "import ray.serve"
	PYTHONPATH=. $(RAY)/bin/python -m pytest tests/scale/test_ray.py
	PYTHONPATH=. $(RAY)/bin/python -m pytest tests/project/test_how_to.py -k scale-with-ray

# One target of tools/fuzz with coverage guidance: `make fuzz TARGET=http SECONDS=600`.
fuzz: $(FUZZ)/.installed
	$(FUZZ)/bin/python -m tools.fuzz $(TARGET) --seconds $(SECONDS)

# For the browser tests, which skip and say so where it is missing.
chromium:
	command -v chromium || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium)

# For the playground: npm fetches its runtime, and a test runs it in Node.js.
node:
	command -v npm || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends nodejs npm)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A warning is an error. The notebooks are executed once for each version of them, or by the notebook tests.
docs: $(MODELS)
	rm -rf docs/generated/api
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs $(SITE)
	$(BIN)/python -m docs.sitegen.playground $(SITE) $(RUNTIME)
	$(BIN)/python -m docs.sitegen.links $(SITE)

# The documentation, and the playground with its runtime, which npm fetches.
site: RUNTIME := pyodide
site: docs

bench: $(MODELS) $(COMPILED)
	$(BIN)/python -m benchmarks

# All benchmarks that do not need a GPU, and docs/performance.md from their results: about an hour.
bench-report: $(MODELS) $(COMPILED)
	$(BIN)/python -m benchmarks --report --rounds 5

wheel: $(INSTALLED)
	rm -f dist/tritonnb-*.whl
	$(BIN)/python -m build --wheel --no-isolation

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

$(TENSORFLOW)/.installed: pyproject.toml
	$(PYTHON) -m venv $(TENSORFLOW)
	$(TENSORFLOW)/bin/python -m pip install --quiet --upgrade pip
	$(TENSORFLOW)/bin/python -m pip install --quiet $$(grep '^torch==' binder/constraints.txt)
	$(TENSORFLOW)/bin/python -m pip install --quiet --editable '.[tensorflow,openvino]' \
		'tritonclient[http]' onnx pytest pytest-timeout hypothesis
	touch $@

$(RAY)/.installed: pyproject.toml
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --upgrade pip
	$(RAY)/bin/python -m pip install --quiet --editable '.[ray]' 'tritonclient[http]' pytest pytest-timeout hypothesis
	touch $@

$(FUZZ)/.installed: pyproject.toml
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --upgrade pip
	$(FUZZ)/bin/python -m pip install --quiet --editable . atheris pytest hypothesis
	touch $@

$(MODELS): $(INSTALLED) $(wildcard tritonnb/model_zoo/*.py)
	$(BIN)/python -m tritonnb models model_repository
	touch $@

# What every request passes through, beside its sources; without a C compiler it stays interpreted, and slower.
$(COMPILED): $(INSTALLED) hatch_build.py $(shell find tritonnb/backends/native -name '*.cc' -o -name '*.h') $(shell sed -n 's/^    "\(tritonnb.*\.py\)",$$/\1/p' pyproject.toml)
	mkdir -p $(@D)
	touch $@.begun
	$(BIN)/python hatch_build.py
	mv $@.begun $@

clean:
	rm -rf $(VENV) build dist docs/figures docs/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f *.so
	find tritonnb -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
