# `make lab` opens the quickstart in JupyterLab, `make test` runs the tests. Nothing but Python 3.11 or later is needed.

# Tests start hundreds of processes, which would all compile the same modules; containers often have this set.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One file for each set of packages that is installed: of the quickstart, of all lessons, of the compiler, and all.
LAB := $(VENV)/.lab
LESSONS := $(VENV)/.lessons
COMPILER := $(VENV)/.compiler
ALL := $(VENV)/.all
MODELS := $(VENV)/.models
COMPILED := build/.compiled
TENSORFLOW := build/tensorflow
RAY := build/ray
HOSTS := build/hosts
PERF_ANALYZER := build/perf_analyzer
WITH_PERF_ANALYZER = PERF_ANALYZER=$(CURDIR)/$(PERF_ANALYZER)/bin/perf_analyzer \
	LD_LIBRARY_PATH=$$(echo $(CURDIR)/$(PERF_ANALYZER)/lib/python3*/site-packages/nvidia/cuda_runtime/lib)
# Tests of Ray run NVIDIA's load generator, too, where its library is installed.
HAS_LIBB64 := $(shell ldconfig -p 2>/dev/null | grep libb64.so.0d)
FUZZ := build/fuzz
SECONDS ?= 60
EXAMPLES ?= 100
SITE := build/site
JAVASCRIPT := tools/javascript
JAVASCRIPT_BIN := $(JAVASCRIPT)/node_modules/.bin
NPM := $(shell command -v npm)
# Tests of one file run in the same process, since they share fixtures; files run in the order of tests/conftest.py.
# A test that hangs ends its process after faulthandler_timeout, and would be tried again in each new one.
SHARED_BY := --dist=loadfile --no-loadscope-reorder --max-worker-restart=1 --numprocesses
FAST := --hypothesis-profile=fast -m "not (browser or kernel or build or isolated or slow)"
# Containers often have no other user, and Jupyter does not run as root without this option.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

COMMA := ,
PINS := binder/constraints.txt
PINNED := --constraint $(PINS)
# uv does not read pip's settings. If they name no wheels, torch is the build for CPUs, without several GB of CUDA.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
ifeq ($(UV_FIND_LINKS),)
export UV_TORCH_BACKEND ?= cpu
endif

# $(call step,TEXT,COMMAND): one line with the time that COMMAND takes; its warnings and errors are shown, too.
step = @printf '%-56s' '$(1)'; begin=$$(date +%s); { $(2); } >/dev/null && echo "$$(($$(date +%s) - begin)) s"
# $(call install,ENVIRONMENT,PACKAGES): with uv, in seconds; with pip where uv cannot be had or cannot find them.
install = { test -x $(1)/bin/uv && VIRTUAL_ENV=$(1) $(1)/bin/uv pip install --quiet $(2); } || { \
	$(1)/bin/python -m pip install -qq --upgrade pip && $(1)/bin/python -m pip install -qq $(2); }

.PHONY: lab demo lessons compile say-if-interpreted test test-browser test-isolated test-builds test-fast laws test-debug test-tensorflow test-ray \
	test-hosts test-perf-analyzer fuzz chromium node valgrind libb64 check check-javascript check-budget docs site bench bench-report wheel models clean

lab: $(LAB) say-if-interpreted
	@$(BIN)/jupyter lab $(AS_ROOT) --Application.log_level=WARN --LabApp.default_url=/lab/tree/notebooks/01_quickstart.ipynb

demo: $(LAB) say-if-interpreted
	@$(BIN)/python notebooks/show.py notebooks/01_quickstart.ipynb

# The packages of the lessons after the first one.
lessons: $(LESSONS)

compile: $(COMPILED)

say-if-interpreted: $(LAB)
	@$(BIN)/python -c 'from tritonnb.compiled import STATE; STATE == "compiled" or print(f"tritonnb is {STATE}. Faster: make compile")'

# Three pytest processes for two cores, since tests often wait. Tests in Chromium have the target `test-browser`, tests
# that compile for minutes `test-builds`, and tests that are repeated with isolated models `test-isolated`.
test: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=3 -m "not (browser or build or isolated)"

test-browser: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=2 -m browser $(wildcard tests/*/test_browser_*.py tests/*/*/test_browser_*.py)
	$(BIN)/python -m tests.lab.teaching.students 1000

# The tests that are repeated with the models in their own processes.
test-isolated: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=3 -m isolated

# Wheels, and PyTorch 2 archives.
test-builds: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=2 -m build

# For the edit loop: without the tests that start a browser, a kernel, a build or isolated models, or take seconds.
test-fast: $(MODELS) $(COMPILED)
	$(BIN)/python -m pytest $(SHARED_BY)=2 $(FAST)

# All examples of the laws (tests/laws.py): `make laws EXAMPLES=1000` tries ten times as many.
laws: $(MODELS) $(COMPILED)
	EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --hypothesis-profile=laws --timeout=0 -o faulthandler_timeout=0 $(SHARED_BY)=2 -m "hypothesis and not isolated"

# The fast tests of the sources instead of the compiled modules, in asyncio's debug mode, which finds calls of the event
# loop on other threads.
test-debug: $(MODELS) $(COMPILED)
	PYTHONASYNCIODEBUG=1 $(BIN)/python -m pytest -p tests.interpreted $(SHARED_BY)=2 $(FAST)

# TensorFlow is large, and not in the extra `all`: its tests run in a dedicated environment, where they do not skip.
test-tensorflow: $(TENSORFLOW)/.installed
	$(TENSORFLOW)/bin/python -c "import tensorflow"
	PYTHONPATH=. $(TENSORFLOW)/bin/python -m pytest tests/backends/test_tensorflow.py
	PYTHONPATH=. $(TENSORFLOW)/bin/python -m pytest tests/project/test_how_to.py -k tensorflow

# Ray starts a dozen processes: its tests run in a dedicated environment, where they do not skip.
test-ray: $(RAY)/.installed $(if $(HAS_LIBB64),$(PERF_ANALYZER)/.installed)
	$(RAY)/bin/python -c "import ray.serve"
	$(if $(HAS_LIBB64),$(WITH_PERF_ANALYZER)) PYTHONPATH=. $(RAY)/bin/python -m pytest tests/scale/test_ray.py
	PYTHONPATH=. $(RAY)/bin/python -m pytest tests/project/test_how_to.py -k scale-with-ray

# NVIDIA's load generator, which needs libb64: `make libb64`.
test-perf-analyzer: $(MODELS) $(COMPILED) $(PERF_ANALYZER)/.installed
	$(WITH_PERF_ANALYZER) $(BIN)/python -m pytest tests/perf_analyzer

# JupyterLab, Notebook, Voila and marimo in Chromium: their tests run in a dedicated environment, where they do not skip.
test-hosts: $(HOSTS)/.installed
	$(HOSTS)/bin/python -c "import marimo, voila"
	PYTHONPATH=. $(HOSTS)/bin/python -m pytest tests/notebook/test_browser_real_hosts.py

# One target of tools/fuzz with coverage guidance: `make fuzz TARGET=http SECONDS=600`.
fuzz: $(FUZZ)/.installed
	$(FUZZ)/bin/python -m tools.fuzz $(TARGET) --seconds $(SECONDS)

# For the browser tests, which skip and say so where it is missing.
chromium:
	command -v chromium || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium)

# For the playground: npm fetches its runtime, and a test runs it in Node.js. `make check` checks JavaScript with it.
node:
	command -v npm || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends nodejs npm)

# For `make check-budget`, which counts instructions with it.
valgrind:
	command -v valgrind || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends valgrind)

# For `make test-perf-analyzer`: what its program is linked with.
libb64:
	ldconfig -p | grep libb64.so.0d >/dev/null || (apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends libb64-0d)

check: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
ifneq ($(NPM),)
	@$(MAKE) --no-print-directory check-javascript
else
	@echo "JavaScript is not checked: expected npm, got none: make node"
endif

# The types of the widgets and of the playground, which browsers run as they are, and a linter for all JavaScript.
check-javascript: $(JAVASCRIPT)/node_modules/.installed
	$(JAVASCRIPT_BIN)/tsc --project $(JAVASCRIPT)
	$(JAVASCRIPT_BIN)/eslint --config $(JAVASCRIPT)/eslint.config.js $$(git ls-files '*.js' '*.mjs' '*.cjs')

# The instructions of a request against benchmarks/instructions.json, which the module writes with the option `--write`.
check-budget: $(ALL) $(COMPILED)
	$(BIN)/python -m benchmarks.instructions

# A warning is an error. The notebooks are executed once for each version of them, or by the notebook tests.
docs: $(MODELS)
	rm -rf docs/generated/api
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs $(SITE)
	$(BIN)/python -m docs.sitegen.playground $(SITE) $(RUNTIME)
	$(BIN)/python -m docs.sitegen.lite $(SITE) $(RUNTIME)
	$(BIN)/python -m docs.sitegen.links $(SITE)
	$(BIN)/python -m docs.sitegen.search $(SITE)

# The documentation, the playground with its runtime, and lessons in JupyterLite. npm and pip fetch what they consist of.
site: RUNTIME := pyodide
site: docs

bench: $(MODELS) $(COMPILED)
	$(BIN)/python -m benchmarks

# All benchmarks that do not need a GPU, and docs/performance.md from their results: about an hour.
bench-report: $(MODELS) $(COMPILED)
	$(BIN)/python -m benchmarks --report --rounds 5

wheel: $(COMPILER)
	@rm -f dist/tritonnb-*.whl
	$(call step,building the wheel,HATCH_QUIET=1 $(BIN)/python -m hatchling build --target wheel)
	@ls dist/tritonnb-*.whl

models: $(MODELS)

%/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(call step,creating $*,{ test -x $*/bin/python || $(PYTHON) -m venv $*; } && \
		{ $*/bin/python -m pip install -qq $(PINNED) uv 2>/dev/null || echo "uv cannot be had: pip installs more slowly" >&2; })
	@hooks=$$(git rev-parse --git-path hooks 2>/dev/null) && mkdir -p $$hooks && cp -n tools/commit-msg $$hooks/ || true
	@touch $@

$(LAB): pyproject.toml $(PINS) | $(VENV)/.created
	$(call step,installing what the quickstart needs,$(call install,$(VENV),$(PINNED) --editable '.[lab]'))
	@touch $@

# rapidocr comes without what it depends on, OpenCV among others: it is wanted for its data files.
$(LESSONS): pyproject.toml $(PINS) | $(VENV)/.created
	$(call step,installing what the lessons need,$(call install,$(VENV),$(PINNED) --editable '.[lessons]') && \
		$(BIN)/python -m pip install -qq --no-deps --ignore-requires-python $$(grep '^rapidocr' $(PINS)))
	@touch $@

$(COMPILER): pyproject.toml $(PINS) | $(VENV)/.created
	$(call step,installing what compiling needs,$(call install,$(VENV),$(PINNED) --group compile))
	@touch $@

$(ALL): $(LESSONS)
	$(call step,installing everything else,$(call install,$(VENV),$(PINNED) --editable '.[all]' \
		--group test --group check --group docs))
	@touch $@ $(LAB) $(COMPILER)

$(TENSORFLOW)/.installed: pyproject.toml | $(TENSORFLOW)/.created
	$(call step,installing TensorFlow,$(call install,$(TENSORFLOW),$$(grep '^torch==' $(PINS)) \
		--editable '.[tensorflow$(COMMA)openvino$(COMMA)grpc]' 'tritonclient[http]' onnx pytest pytest-timeout hypothesis))
	@touch $@

$(RAY)/.installed: pyproject.toml | $(RAY)/.created
	$(call step,installing Ray,$(call install,$(RAY),--editable '.[ray]' 'tritonclient[http]' pytest pytest-timeout hypothesis))
	@touch $@

# The last wheel whose program needs no glibc 2.38, which Debian 12 does not have.
$(PERF_ANALYZER)/.installed: | $(PERF_ANALYZER)/.created
	$(call step,installing perf_analyzer,$(call install,$(PERF_ANALYZER),--no-deps tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.9.79))
	@touch $@

$(HOSTS)/.installed: pyproject.toml $(PINS) | $(HOSTS)/.created
	$(call step,installing the hosts of the views,$(call install,$(HOSTS),$(PINNED) --editable . --group hosts))
	@touch $@

$(FUZZ)/.installed: pyproject.toml | $(FUZZ)/.created
	$(call step,installing Atheris,$(call install,$(FUZZ),--editable '.[grpc]' atheris pytest hypothesis))
	@touch $@

$(JAVASCRIPT)/node_modules/.installed: $(JAVASCRIPT)/package.json $(JAVASCRIPT)/package-lock.json
	$(call step,installing what checking JavaScript needs,npm --prefix $(JAVASCRIPT) ci --ignore-scripts --no-audit --no-fund)
	@touch $@

$(MODELS): $(ALL) $(wildcard tritonnb/model_zoo/*.py)
	$(call step,creating the example models,$(BIN)/python -m tritonnb models model_repository)
	@touch $@

# The modules on the request path, beside their sources; without a C compiler they stay interpreted, and slower.
$(COMPILED): $(COMPILER) hatch_build.py $(shell find tritonnb/backends/native -name '*.cc' -o -name '*.h') $(shell sed -n 's/^    "\(tritonnb.*\.py\)",$$/\1/p' pyproject.toml)
	@mkdir -p $(@D) && touch $@.begun
	$(call step,compiling the request path,$(BIN)/python hatch_build.py)
	@mv $@.begun $@

clean:
	rm -rf $(VENV) build dist docs/figures docs/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		$(JAVASCRIPT)/node_modules
	find tritonnb -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
