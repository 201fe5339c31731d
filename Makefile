# Each target does all of its set-up by itself; a second run redoes none of it.
#
#   make demo       build, then compile real models and print a table (PEER=1: against torch.compile as well)
#   make test       build, then the test suite (ARGS: passed to pytest, e.g. ARGS="-k bert")
#   make test-all   each program in every way, all operators in all dtypes, all models with the default backend
#   make build      .venv with the package in place: .venv/bin/python -c "import magneto"
#   make bench      the figures against torch.compile; results in bench/results/
#   make lint       structure (tools/structure.toml), clang-format, clang-tidy, ruff, mypy, docs
#   make lint-fast  all but clang-tidy, in seconds
#   make docs       the documentation site, into build/site; its code blocks run in the tests (tools/run_docs.py)
#   make odr        the whole program through the linker's -Wodr: no two definitions of one class
#   make sanitize   the tests under AddressSanitizer and UBSan, then the threaded ones under ThreadSanitizer
#   make wheel      dist/magneto-*.whl, for this Python and this PyTorch
#   make wheels     the same for each pair of a Python and a PyTorch that can be had here (PYTHONS, RELEASES: for these)
#   make try-wheel  installs that wheel where there is PyTorch alone, without compiler and headers, and runs the demo
#   make clean      removes what was built (not .venv; `make distclean` does)
#
# PYTHON: the interpreter to use; its PyTorch is used if it has one that Magneto supports. TORCH: what is installed
# otherwise. VENV: the virtual environment, `.venv` unless said otherwise; each has a build folder of its own, so that
# several Pythons can stand side by side (make test PYTHON=python3.13 VENV=.venv-3.13). JOBS: parallel compilations.
# PYTHONS, RELEASES: interpreters and releases of PyTorch for `make wheels`, e.g. PYTHONS=python3.13 RELEASES="2.12.1 2.13.0".
# WORKERS: processes that run tests (0: one, with its output as it comes).
SHELL := /bin/bash
PYTHON ?=
TORCH ?= torch==2.13.0
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTHONS ?=
RELEASES ?=
WORKERS ?= $(JOBS)
ARGS ?=

export VENV
venv := $(VENV)/bin/python
folder := build$(VENV:.venv%=%)
setup := PYTHON='$(PYTHON)' TORCH='$(TORCH)' tools/setup.sh

.PHONY: build test test-all demo bench lint lint-fast docs odr sanitize wheel wheels try-wheel clean distclean
.DELETE_ON_ERROR:

$(VENV)/.ready-build: tools/setup.sh
	@$(setup) build

$(VENV)/.ready-test: tools/setup.sh pyproject.toml $(VENV)/.ready-build
	@$(setup) test

$(VENV)/.ready-lint: tools/setup.sh pyproject.toml $(VENV)/.ready-build
	@$(setup) lint

$(VENV)/.ready-docs: tools/setup.sh pyproject.toml $(VENV)/.ready-build
	@$(setup) docs

$(VENV)/.ready-wheel: tools/setup.sh pyproject.toml $(VENV)/.ready-build
	@$(setup) wheel

build: $(VENV)/.ready-build
	@[[ -z '$(PYTHON)' ]] || $(setup) same
	@tools/build.sh $(folder) $(JOBS)

test: build $(VENV)/.ready-test
	@$(venv) -P -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-all: build $(VENV)/.ready-test
	@$(venv) -P -m pytest -n $(WORKERS) --dist loadfile -m "long or not long" $(ARGS)

demo: build $(VENV)/.ready-test
	@$(venv) -P demo/demo.py

bench: build $(VENV)/.ready-test
	@$(venv) -P bench/run.py $(ARGS)

lint: $(VENV)/.ready-test $(VENV)/.ready-lint $(VENV)/.ready-docs
	@tools/lint.sh $(JOBS)

lint-fast: $(VENV)/.ready-test $(VENV)/.ready-lint $(VENV)/.ready-docs
	@tools/lint.sh $(JOBS) fast

# The variable: the theme tells of its authors' next one.
docs: $(VENV)/.ready-docs
	@NO_MKDOCS_2_WARNING=1 $(venv) -P -m mkdocs --quiet build --strict

# Types are compared when objects are linked; what the code does is not looked at, so it is not optimised.
odr: build
	@mkdir -p build/odr/package
	@tools/build.sh build/odr $(JOBS) -DMAGNETO_PACKAGE_DIR="$(CURDIR)/build/odr/package" -DCMAKE_BUILD_TYPE=None \
	  -DCMAKE_CXX_FLAGS="-O0 -flto=$(JOBS) -Wodr -Wlto-type-mismatch -Werror=odr -Werror=lto-type-mismatch"

sanitize: $(VENV)/.ready-test
	@tools/sanitize.sh $(JOBS)

# The core is linked with the PyTorch that it was built against: no build isolation, which would fetch another one.
wheel: $(VENV)/.ready-wheel
	@tools/wheels.sh one '$(venv)' $(JOBS)

wheels:
	@PYTHONS='$(PYTHONS)' RELEASES='$(RELEASES)' tools/wheels.sh all $(JOBS)

try-wheel: wheel
	@$(venv) -P tools/try_wheel.py $(ARGS)

clean:
	rm -rf build build-* dist magneto/_C.*.so compile_commands.json bench/results
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*
