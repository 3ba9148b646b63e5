# gpuops.fleet: everything a person or a pipeline runs here. `make help` lists the targets.
# Nothing outside this checkout is written, HOME included: what programs keep in HOME goes to build/home.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The recipes share virtual environments and use all processors themselves; only the checks of `test` run side by side.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

# The Python (3.11 or newer) that the virtual environments are made of: python3; or the system's own, where it serves and python3 was
# built without profile-guided optimization, as version managers do it: all that is computed here then takes a quarter longer. Another
# one for the floor: ansible-core 2.16 stops at 3.12.
SYSTEM_PYTHON := /usr/bin/python3
PYTHON ?= $(shell \
	if ! python3 -c 'import sys, sysconfig; sys.exit("--enable-optimizations" not in sysconfig.get_config_var("CONFIG_ARGS"))' 2> /dev/null \
		&& $(SYSTEM_PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; \
	then echo $(SYSTEM_PYTHON); else echo python3; fi)
FLOOR_PYTHON ?= $(PYTHON)
JOBS ?= 2

ROOT := $(CURDIR)
PY := $(ROOT)/.venv/bin/python
FLOOR_PY := $(ROOT)/.venv-floor/bin/python
SIMULATOR := $(ROOT)/build/simulator

# pip asks `rustc` for its version, and a rustup that was never used before answers by making ~/.rustup.
QUIET_RUSTUP := $(if $(wildcard $(HOME)/.rustup),,RUSTUP_HOME='$(ROOT)/build/home/.rustup')
# pip alone sees the user's own HOME: a site's index and certificates are named there. It reads it, and writes to build/cache.
AS_USER := env $(if $(XDG_CONFIG_HOME),XDG_CONFIG_HOME='$(XDG_CONFIG_HOME)',-u XDG_CONFIG_HOME) HOME='$(HOME)' $(QUIET_RUSTUP)
PIP_INSTALL := -m pip install --quiet --quiet --disable-pip-version-check --no-input --requirement

export HOME := $(ROOT)/build/home
export XDG_CACHE_HOME := $(HOME)/.cache
export XDG_CONFIG_HOME := $(HOME)/.config
export XDG_DATA_HOME := $(HOME)/.local/share
export XDG_STATE_HOME := $(HOME)/.local/state
export PIP_CACHE_DIR := $(ROOT)/build/cache/pip
export ANSIBLE_HOME := $(HOME)/.ansible
export ANSIBLE_CONFIG := $(ROOT)/ansible.cfg
export ANSIBLE_COLLECTIONS_PATH := $(ROOT)/collections
export RUFF_CACHE_DIR := $(ROOT)/build/cache/ruff
export PATH := $(ROOT)/.venv/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV ANSIBLE_INVENTORY ANSIBLE_ROLES_PATH ANSIBLE_LIBRARY NVML_SIM_STATE LD_LIBRARY_PATH

# Stamps: a set-up step runs again only when what it was made from has changed.
RUN := .venv/run.stamp
DEV := .venv/dev.stamp
LAB := .venv/lab.stamp
FLOOR := .venv-floor/floor.stamp
NEWEST := build/lab/newest/newest.stamp
COLLECTIONS := collections/collections.stamp
FLOOR_COLLECTIONS := .venv-floor/collections/collections.stamp
NEWEST_COLLECTIONS := build/lab/newest/collections/collections.stamp
CHROOT_COLLECTIONS := build/chroot/collections/collections.stamp

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up ---------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(RUN) $(COLLECTIONS) $(DEV) $(FLOOR) $(FLOOR_COLLECTIONS) bytecode ## virtual environments and collections, all inside the checkout

build/home:
	@mkdir -p $@

define venv
	@'$(1)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(1) is older than Python 3.11: make PYTHON=/path/to/a/newer/one" >&2; exit 1; }
	@test -x $(2)/bin/pip || { echo "making $(2) with $$('$(1)' --version)"; rm -rf $(2); '$(1)' -m venv $(2) || { \
		echo "the module venv is missing (Debian: apt install python3-venv)" >&2; exit 1; }; }
endef

$(RUN): requirements/run.txt | build/home
	$(call venv,$(PYTHON),.venv)
	@echo "installing requirements/run.txt"
	@$(AS_USER) $(PY) $(PIP_INSTALL) requirements/run.txt
	@touch $@

$(DEV): requirements/dev.txt requirements/run.txt $(RUN)
	@echo "installing requirements/dev.txt"
	@$(AS_USER) $(PY) $(PIP_INSTALL) requirements/dev.txt
	@touch $@

$(LAB): requirements/lab.txt requirements/dev.txt requirements/run.txt $(DEV)
	@echo "installing requirements/lab.txt"
	@$(AS_USER) $(PY) $(PIP_INSTALL) requirements/lab.txt
	@touch $@

$(FLOOR): requirements/floor.txt | build/home
	$(call venv,$(FLOOR_PYTHON),.venv-floor)
	@echo "installing requirements/floor.txt"
	@$(AS_USER) $(FLOOR_PY) $(PIP_INSTALL) requirements/floor.txt
	@touch $@

# The collections a play needs, and this checkout itself under its name.
define collections
	@$(AS_USER) $(PY) tests/tools/fetch_collections.py --requirements $(1) --into $(2) $(4)
	@mkdir -p $(2)/ansible_collections/gpuops
	@ln -sfn '$(3)' $(2)/ansible_collections/gpuops/fleet
	@touch $@
endef

$(COLLECTIONS): requirements/collections.txt galaxy.yml tests/tools/fetch_collections.py | $(RUN)
	$(call collections,$<,collections,../../..)

# For the Python of the lab's guests, unpacked here because they reach no index. pip holds a package's Requires-Python against the Python
# that runs pip, which may be older; that a pin has a wheel for the guests' Python is checked all the same.
GUEST_PYTHON := 3.13
GUEST_PLATFORMS := $(addprefix --platform ,manylinux2014_x86_64 manylinux_2_28_x86_64 manylinux_2_34_x86_64)

$(NEWEST): requirements/newest.txt | $(RUN)
	@echo "unpacking requirements/newest.txt for Python $(GUEST_PYTHON)"
	@rm -rf $(@D)/site-packages && mkdir -p $(@D)
	@$(AS_USER) $(PY) $(PIP_INSTALL) $< --target $(@D)/site-packages --no-compile --ignore-requires-python \
		--python-version $(GUEST_PYTHON) --only-binary :all: $(GUEST_PLATFORMS)
	@touch $@

$(NEWEST_COLLECTIONS): requirements/collections-newest.txt galaxy.yml tests/tools/fetch_collections.py | $(RUN)
	$(call collections,$<,$(@D),../../../../../..)

$(FLOOR_COLLECTIONS): requirements/collections-floor.txt galaxy.yml tests/tools/fetch_collections.py | $(RUN) $(FLOOR)
	$(call collections,$<,.venv-floor/collections,../../../..)

# community.general has the connection into a root; the product does not need it.
$(CHROOT_COLLECTIONS): requirements/collections.txt galaxy.yml tests/tools/fetch_collections.py | $(RUN)
	$(call collections,$<,$(@D),../../../../..,--also community.general)

# Python writes it itself when it first loads a module, unless PYTHONDONTWRITEBYTECODE forbids it: then each process that plans would
# compile everything anew, for longer than many a plan takes.
.PHONY: bytecode
bytecode: $(RUN)
	@$(PY) -m compileall -q plugins tests/bench tests/unit

# --- the simulated fleet --------------------------------------------------------------------------------------------

.PHONY: simulator
simulator: $(RUN) ## the simulated NVML library and its tools, into build/simulator
	@$(MAKE) --no-print-directory --silent -C tests/simulator PYTHON='$(PY)' OUT='$(SIMULATOR)'

.PHONY: demo
demo: $(RUN) $(COLLECTIONS) simulator ## the whole job on three simulated hosts; state and report below build/demo
	@$(PY) tests/demo/run.py

# --- checks ---------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: $(DEV) $(COLLECTIONS) ## ruff, mypy, ansible-lint, yamllint, changelog and our own checks of the tree
	ruff check .
	ruff format --check --quiet .
	mypy -p ansible_collections.gpuops.fleet.plugins
	mypy --python-version 3.10 -p ansible_collections.gpuops.fleet.plugins.module_utils -p ansible_collections.gpuops.fleet.plugins.modules
	mypy $$(git -c safe.directory='$(ROOT)' ls-files --cached --others --exclude-standard 'tests/tools/*.py' 'tests/bench/*.py' 'tests/demo/*.py' 'tests/chroot/*.py')
	mypy -p lab
	yamllint --strict .
	antsibull-changelog lint
	$(PY) tests/tools/check_tree.py
	ansible-lint --offline --nocolor --profile production

.PHONY: sanity
sanity: $(DEV) ## ansible-test sanity on a copy below build/ (part of test)
	@$(AS_USER) $(PY) tests/tools/sanity.py

.PHONY: floor
floor: $(FLOOR) $(FLOOR_COLLECTIONS) simulator ## the demo, twice, on the oldest ansible-core that we promise (part of test)
	@rm -rf build/floor && mkdir -p build/floor
	@for run in first second; do \
		echo "floor: $$run run on $$(.venv-floor/bin/ansible --version | sed -n 1p)"; \
		ANSIBLE_COLLECTIONS_PATH='$(ROOT)/.venv-floor/collections' PATH='$(ROOT)/.venv-floor/bin':"$$PATH" \
			$(FLOOR_PY) tests/demo/run.py --work build/floor/demo --collections .venv-floor/collections \
			> build/floor/$$run.log 2>&1 || { tail -n 40 build/floor/$$run.log; exit 1; }; \
	done
	@grep '^changed: nothing' build/floor/second.log || { echo "floor: the second run changed something" >&2; tail -n 40 build/floor/second.log; exit 1; }

.PHONY: test
test: $(DEV) $(COLLECTIONS) $(FLOOR) $(FLOOR_COLLECTIONS) simulator ## everything that must pass; pytest comes last
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target SIDE_BY_SIDE=1 lint sanity floor
	@rm -rf build/coverage build/pytest && mkdir -p build/coverage build/pytest
	@$(PY) -m pytest -n $(JOBS) --max-worker-restart=0 --dist loadfile --no-loadscope-reorder -o cache_dir=build/cache/pytest --basetemp=build/pytest --cov --cov-report=term --cov-report=html --cov-fail-under=90 --durations=30

.PHONY: proof
proof: $(DEV) $(COLLECTIONS) simulator ## MIG's complete proof: every random pair, crash point and error (test takes a part of it); prints what was tried
	@rm -rf build/pytest && mkdir -p build/pytest
	@MIG_PROOF=complete $(PY) -m pytest -n $(JOBS) --max-worker-restart=0 --dist loadfile -o faulthandler_timeout=0 -o cache_dir=build/cache/pytest --basetemp=build/pytest tests/unit/test_mig_oracle.py tests/unit/test_mig_crash.py tests/unit/test_mig_twice.py

.PHONY: chroot
chroot: $(DEV) $(CHROOT_COLLECTIONS) ## roles for bare hosts in a Debian root of their own, apt at work, twice; needs root; PLAY=x runs one
	@$(PY) tests/chroot/run.py $(PLAY)

# --- virtual machines -----------------------------------------------------------------------------------------------

.PHONY: lab
lab: $(LAB) $(COLLECTIONS) $(if $(filter newest_core,$(SCENARIO)),$(NEWEST) $(NEWEST_COLLECTIONS)) ## the main job in virtual machines with a real engine; SCENARIO=x runs one of the others
	@$(PY) tests/lab/run.py test $(SCENARIO)

.PHONY: lab-all
lab-all: $(LAB) $(COLLECTIONS) $(NEWEST) $(NEWEST_COLLECTIONS) ## every scenario; logs below build/lab/logs
	@$(PY) tests/lab/run.py test --all

.PHONY: lab-shell
lab-shell: $(LAB) $(COLLECTIONS) ## boot a scenario's guests (SCENARIO=x), leave them running, say how to enter them
	@$(PY) tests/lab/run.py shell $(SCENARIO)

# --- benchmarks and mutants -----------------------------------------------------------------------------------------

.PHONY: mutation
mutation: $(DEV) $(COLLECTIONS) simulator ## mutants of MIG, geometry and the planner that the tests kill; survivors below build/mutation
	@$(PY) tests/tools/mutation.py --jobs $(JOBS)

.PHONY: bench
bench: $(RUN) $(COLLECTIONS) simulator bytecode ## the planner, the compatibility gate, gpu_info and a no-op mig, each beside a baseline, into build/bench; QUICK=--quick
	@$(PY) tests/bench/planner/run.py $(QUICK)
	@$(PY) tests/bench/gate.py
	@$(PY) tests/bench/bench.py

# --- results --------------------------------------------------------------------------------------------------------

.PHONY: schema
schema: $(RUN) $(COLLECTIONS) ## JSON Schema of the manifests for editors, into build/schema
	@$(PY) tests/tools/write_schema.py

.PHONY: dist
dist: $(RUN) $(COLLECTIONS) simulator ## build the collection, install it into an empty path, run the demo from there
	@$(PY) tests/tools/dist.py

.PHONY: clean
clean: ## remove what was built; virtual environments and collections stay
	@if test -d build/lab -a -f $(LAB); then $(PY) tests/lab/run.py down; fi
	rm -rf build
	find . -path ./.venv -prune -o -path ./.venv-floor -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove everything that set-up made as well
	rm -rf .venv .venv-floor collections .ansible
