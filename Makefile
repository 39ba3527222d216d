# Every target does its own set-up, in .venv and with pinned, hashed packages. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What looks at dependencies has many of its own, which nothing else is to meet.
AUDIT := .audit
AUDITED := $(AUDIT)/.installed
LOCKS := requirements.lock requirements-server.lock requirements-build.lock requirements-audit.lock
FLIGHTS := .demo/sdist/.downloaded

# What the long versions use: how many times the examples of each property test (see
# tests/conftest.py), how many seeds of both simulations, how many kills of the daemon, how many
# hostile frames, how many connections that end in a long answer, how long all faults at once; and
# after how many seconds a part that hangs is aborted, and says where it was.
EXAMPLES_FACTOR_NIGHTLY ?= 20
SIM_SEEDS_NIGHTLY ?= 5000
CLUSTER_SEEDS_NIGHTLY ?= 20000
KILL_CYCLES_NIGHTLY ?= 1000
FUZZ_FRAMES_NIGHTLY ?= 10000000
DEPARTURES_NIGHTLY ?= 20000
SOAK_MINUTES_NIGHTLY ?= 30
CLUSTER_MINUTES_NIGHTLY ?= 15
LIMIT_S_NIGHTLY ?= 28800

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(INSTALLED) ## Create .venv with the pinned packages and this project in editable form

$(INSTALLED): requirements.lock requirements-build.lock pyproject.toml
	@tools/check-python "$(PYTHON)"
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(AUDITED): requirements-audit.lock
	@tools/check-python "$(PYTHON)"
	test -x $(AUDIT)/bin/python || "$(PYTHON)" -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --require-hashes -r requirements-audit.lock
	touch $@

.PHONY: java
java:
	@tools/check-java

.PHONY: check
check: $(INSTALLED) $(AUDITED) ## Format, lint, types, layers, tidiness, holes known in dependencies (under two minutes)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_tidy.py
	$(AUDIT)/bin/python tools/audit.py $(LOCKS)

.PHONY: test
test: $(INSTALLED) $(AUDITED) java peers browser ## All tests: real processes, real Spark, a smoke run of the benchmark (about half an hour)
	$(BIN)/python -m pytest -q -n auto -m "not integration and not spark and not nightly"
	@tools/beside \
		"$(BIN)/python -m pytest -q -m 'spark and not nightly'" \
		"$(BIN)/python -m pytest -q -m 'integration and not spark and not nightly'"

.PHONY: nightly
nightly: export EXAMPLES_FACTOR := $(EXAMPLES_FACTOR_NIGHTLY)
nightly: export SIM_SEEDS := $(SIM_SEEDS_NIGHTLY)
nightly: export CLUSTER_SEEDS := $(CLUSTER_SEEDS_NIGHTLY)
nightly: export LIMIT_S := $(LIMIT_S_NIGHTLY)
nightly: $(INSTALLED) $(AUDITED) java peers browser ## The long versions: more examples, more seeds, more kills, half an hour of all faults
	timeout --signal=ABRT --kill-after=30 $(LIMIT_S_NIGHTLY) \
		$(BIN)/python -m pytest -q -n auto -o faulthandler_timeout=7200 -m "not integration and not spark"
	@tools/beside \
		"$(BIN)/python -m pytest -q -o faulthandler_timeout=7200 -m spark" \
		"$(BIN)/python -m pytest -q -o faulthandler_timeout=7200 -m 'integration and not spark'"
	$(BIN)/python -m tests.kill_loop --cycles $(KILL_CYCLES_NIGHTLY)
	$(BIN)/python -m tests.departures --connections $(DEPARTURES_NIGHTLY)
	$(BIN)/python -m tests.fuzz --frames $(FUZZ_FRAMES_NIGHTLY)
	@if $(BIN)/python -c "import atheris" 2>/dev/null; then $(BIN)/python -m tests.fuzz.guided; \
		else echo "atheris is not installed: nothing was fuzzed by coverage"; fi
	$(BIN)/python -m tests.strangers
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES_NIGHTLY)
	$(BIN)/python -m tests.soak.cluster --minutes $(CLUSTER_MINUTES_NIGHTLY)

.PHONY: bench
bench: $(INSTALLED) java $(if $(QUICK),,peers) ## Speed and memory, beside peers (about an hour; QUICK=1 for a smoke run)
	$(BIN)/python -m bench.run $(if $(QUICK),--quick)
	$(BIN)/python -m bench.groups $(if $(QUICK),--quick)
	$(BIN)/python -m bench.command_line $(if $(QUICK),--quick)
	$(BIN)/python -m bench.operators $(if $(QUICK),--quick)
	$(BIN)/python -m bench.telemetry $(if $(QUICK),--quick)
	$(BIN)/python -m bench.security $(if $(QUICK),--quick)
	$(if $(QUICK),,$(BIN)/python -m bench.zookeeper)
	$(if $(QUICK),,$(BIN)/python -m bench.cluster)
	$(BIN)/python -m bench.spark $(if $(QUICK),--quick)

# A browser for the page, and Prometheus for metrics and alerts, where the system has packages of
# them and they may be installed. Tests without them are skipped, and say so.
.PHONY: browser
browser:
	-@tools/install-browser

# Kafka, ZooKeeper and Spark's connectors. What can't be had is skipped by the tests and the
# benchmark, which say so.
.PHONY: peers
peers: $(INSTALLED)
	-$(BIN)/python -m bench.peer_jars fetch

.PHONY: demo
demo: $(INSTALLED) java $(FLIGHTS) $(if $(CLUSTER),peers) ## Three Spark drivers share the flights of 2013 and survive a kill -9 (under 4 minutes); CLUSTER=1: so does a cluster
	$(BIN)/python -m demo $(if $(CLUSTER),--cluster)

# pip asks a source archive for its metadata even where it only downloads; without isolation it
# does so with the pinned setuptools, and only after the archive's hash was found right.
$(FLIGHTS): demo/flights.lock | $(INSTALLED)
	rm -rf .demo/sdist
	$(BIN)/python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation \
		--require-hashes --dest .demo/sdist -r demo/flights.lock
	touch $@

.PHONY: lock
lock: ## Refresh the four lock files (needs pip-tools on the PATH)
	pip-compile --quiet --upgrade $(LOCK_OPTIONS) --extra dev --extra server --extra spark --extra delta \
		--extra kafka --extra metrics --extra sasl --extra zookeeper --output-file requirements.lock pyproject.toml
	pip-compile --quiet --upgrade $(LOCK_OPTIONS) --extra server --extra zookeeper \
		--output-file requirements-server.lock pyproject.toml
	pip-compile --quiet --upgrade $(LOCK_OPTIONS) --only-build-deps --all-build-deps \
		--output-file requirements-build.lock pyproject.toml
	pip-compile --quiet --upgrade $(LOCK_OPTIONS) --output-file requirements-audit.lock \
		requirements-audit.in

# No address of a package index ends up in a lock file.
LOCK_OPTIONS := --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links --no-emit-options

.PHONY: sbom
sbom: $(AUDITED) ## Bills of materials (CycloneDX) in dist: of the daemon, and of development
	$(AUDIT)/bin/python tools/sbom.py requirements-server.lock dist/server.cdx.json
	$(AUDIT)/bin/python tools/sbom.py requirements.lock dist/development.cdx.json

.PHONY: clean
clean: ## Remove what was built, but not .venv and .audit
	rm -rf .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
