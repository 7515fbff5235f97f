# The only door: `make help` lists what there is, `make` alone checks and tests.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.keeplast-installed
DOCS_STAMP := $(VENV)/.keeplast-docs-installed
# Overridable: PYTHON=..., RUNNER=local, GIT=PATH, SEEDS=N, WORKERS=N, LONG=, ARGS="more arguments".
RUNNER ?= spark
GIT ?= .
ARGS ?=
LONG ?= --long
# Processes that run tests side by side; WORKERS=0 runs them in one, where -s and --pdb work.
WORKERS ?= 2
# A container image with this host's version of Python and its venv module; empty: python:VERSION-slim-bookworm.
IMAGE_BASE ?=
CONSOLE ?= 127.0.0.1:9590
SITE ?= 127.0.0.1:9591
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo $$p && break; done)

define NEEDS_PYTHON
keeplast needs Python 3.11 or newer with its venv module: install the packages python3.11 and
python3.11-venv (Debian, Ubuntu), or name an interpreter with PYTHON=...
endef
export NEEDS_PYTHON
define NEEDS_JAVA
Spark needs Java 17 or newer and there is none on the PATH or in JAVA_HOME: install the package
openjdk-17-jre-headless (Debian, Ubuntu), java-17-openjdk-headless (Fedora) or openjdk@17 (Homebrew).
keeplast itself works without it: only --runner spark and --master need it.
endef
export NEEDS_JAVA

define NEEDS_GO
What these tests start, versitygw or Helm, is built with Go 1.24 or newer: install Go.
endef
export NEEDS_GO
GATEWAY := build/bin/versitygw
define NEEDS_VALE
Vale, which lints the pages, is built with Go 1.24 or newer: install Go, or put a vale of 3.7 into
build/bin.
endef
export NEEDS_VALE
VALE := build/bin/vale
HELM := build/bin/helm
define NEEDS_PROMETHEUS
Alerts and the dashboard are tried on a real Prometheus: install the package prometheus (Debian, Ubuntu),
or put prometheus and promtool on the PATH. The server need not run: the tests start one of their own.
endef
export NEEDS_PROMETHEUS
define NEEDS_NODE
Azurite, the emulator of Azure's blobs that these tests ask, is installed with npm: install the packages
nodejs and npm (Debian, Ubuntu), or Node.js 18 or newer.
endef
export NEEDS_NODE
# Of what it depends on nothing is taken that is younger than the day named here.
AZURITE := build/azurite/node_modules/azurite/dist/src/blob/main.js
AZURITE_VERSION := 3.35.0
AZURITE_BEFORE := 2026-11-01
define NEEDS_CHROMIUM
The console is tried in a real browser: install the packages chromium and chromium-driver (Debian), or
put chromium and chromedriver of one version on the PATH.
endef
export NEEDS_CHROMIUM

.DEFAULT_GOAL := all
.PHONY: all help setup check test test-all test-kafka test-attach-cluster beside-a-broker test-services test-watch test-console fuzz-console console-pictures chromium prometheus soak soak-attach soak-readers try-plugin simulate bench bench-peers bench-growth bench-start bench-tier bench-attached bench-console demo demo-tier demo-attach demo-cdc demo-console docs docs-serve docs-version reference readme lock release-check image java clean

all: check test  ## What `make` alone does: check and test

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		while IFS= read -r line; do printf '  %-12s %s\n' "$${line%%:*}" "$${line##*## }"; done

setup: $(STAMP)  ## Make .venv with the pinned versions of everything; nothing happens when it is there

$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "$$NEEDS_PYTHON" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$$NEEDS_PYTHON" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint requirements.lock --editable '.[spark,s3,tier,cluster,console,dev]'
	@touch $@

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	test "$${version:-0}" -ge 17 || { echo "$$NEEDS_JAVA" >&2; exit 1; }

check: setup $(VALE)  ## Format, lint, types, floors, generated pages, plain English, budgets
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/make_reference.py --check
	$(BIN)/python tools/fill_scenarios.py --check
	$(BIN)/python tools/check_prose.py
	$(BIN)/python tools/house.py

# Hundreds of processes would each compile the package again.
unexport PYTHONDONTWRITEBYTECODE
SIDE_BY_SIDE := -n $(WORKERS) --max-worker-restart 0 --dist loadscope --no-loadscope-reorder
PYTEST := $(BIN)/pytest -m 'not kafka and not services and not watch and not console' $(SIDE_BY_SIDE)

# A directory on a real disk costs a test more than all else that pytest does for it. In memory they
# lie where programs may run, 4 GiB are free, and twice as much memory is.
MEMORY_DISK = $(shell test -w /dev/shm && ! grep -q ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts && \
	test "$$(df -Pk /dev/shm | awk 'NR == 2 { print $$4 }')" -gt 4194304 && \
	test "$$(awk '/MemAvailable/ { print $$2 }' /proc/meminfo)" -gt 8388608 && echo /dev/shm)

test: export PYTHONHASHSEED := 0
test: export PYTEST_DEBUG_TEMPROOT ?= $(MEMORY_DISK)
test: setup java  ## Every promise once, of large matrices a share that changes by day; ARGS=--all takes all
	$(PYTEST) --override-ini tmp_path_retention_policy=failed --override-ini tmp_path_retention_count=1 $(ARGS)

test-all: setup java  ## Everything: all of every matrix, the long forms, Kafka as the referee, the services
	$(PYTEST) --all --long $(ARGS)
	$(MAKE) --no-print-directory test-kafka test-attach-cluster test-services test-watch test-console

test-kafka: setup java  ## Kafka's own cleaner as the referee (fetches its jars with Maven); SEEDS=N for more logs
	$(BIN)/python -m tests.kafka.fetch
	$(BIN)/pytest -m 'kafka and not cluster' $(SIDE_BY_SIDE) --all --long tests/kafka $(ARGS)

test-attach-cluster: setup java  ## Rounds in a live tier under three brokers whose leaders change, die and freeze; LONG= for less
	$(BIN)/pytest -m cluster --all $(LONG) tests/kafka/test_attach_cluster.py tests/kafka/test_attach_spark_kills.py $(ARGS)

beside-a-broker: setup java  ## A store copied next to real brokers that clean, for longer; ARGS='--store-seconds 600'
	$(BIN)/pytest -m kafka tests/kafka/test_store_next_to_a_broker.py -s $(ARGS)

$(VALE):
	@command -v go >/dev/null || { echo "$$NEEDS_VALE" >&2; exit 1; }
	GOBIN=$(CURDIR)/build/bin go install github.com/errata-ai/vale/v3/cmd/vale@v3.7.1

$(GATEWAY):
	@command -v go >/dev/null || { echo "$$NEEDS_GO" >&2; exit 1; }
	GOBIN=$(CURDIR)/build/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

$(AZURITE):
	@{ command -v node && command -v npm; } >/dev/null || { echo "$$NEEDS_NODE" >&2; exit 1; }
	mkdir -p build/azurite
	npm install --prefix build/azurite --no-audit --no-fund --omit=optional --ignore-scripts \
		--loglevel error --before $(AZURITE_BEFORE) azurite@$(AZURITE_VERSION)

test-services: setup $(GATEWAY) $(AZURITE)  ## The tier on a real PostgreSQL (package postgresql), an S3 server (built with Go), Azurite (with npm)
	$(BIN)/pytest -m services --all --long tests/services $(ARGS)

$(HELM):
	@command -v go >/dev/null || { echo "$$NEEDS_GO" >&2; exit 1; }
	GOBIN=$(CURDIR)/build/bin go install helm.sh/helm/v3/cmd/helm@v3.17.3

prometheus:
	@{ command -v prometheus && command -v promtool; } >/dev/null || { echo "$$NEEDS_PROMETHEUS" >&2; exit 1; }

test-watch: setup prometheus $(HELM)  ## The Helm chart, alerts and dashboard, on a real Prometheus (package prometheus) and Helm (built with Go)
	$(BIN)/pytest -m watch tests/watch $(ARGS)

chromium:
	@command -v chromedriver >/dev/null && \
		{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || \
		{ echo "$$NEEDS_CHROMIUM" >&2; exit 1; }

test-console: setup chromium  ## The console in a real browser (packages chromium, chromium-driver), and made-up requests
	$(BIN)/pytest -m console tests/console $(ARGS)

fuzz-console: setup  ## Made-up requests and crowds to a running console for ten minutes; ARGS='--fuzz-seed 7'
	$(BIN)/pytest -m console tests/console/test_fuzz.py --fuzz-seconds 300 --fuzz-seed $$RANDOM $(ARGS)

console-pictures: setup chromium  ## Take the pictures in docs/how-to/images anew
	$(BIN)/pytest -m console tests/console/test_pictures.py --refresh-pictures $(ARGS)

soak: setup $(GATEWAY)  ## Two hosts under load, killed and frozen, on PostgreSQL and S3; ARGS='--minutes 10 --seed 7'
	$(BIN)/pytest -m services tests/services/test_soak.py -s $(ARGS)

soak-attach: setup java  ## Three tiered brokers under load, rounds, kills and new leaders; ARGS='--soak-minutes 60 --soak-seed 7'
	$(BIN)/pytest -m kafka tests/kafka/soak_attach.py -s $(ARGS)

soak-readers: setup java  ## Readers of one broker, again and again, while topic after topic goes through rounds; ARGS='--soak-minutes 60'
	$(BIN)/pytest -m kafka tests/kafka/soak_readers.py -s $(ARGS)

try-plugin: setup java $(GATEWAY)  ## Aiven's plugin itself on real brokers and an S3 server; PLUGIN=DIRECTORY with its jars
	@test -n "$(PLUGIN)" || { echo "name the directory with the plugin's jars: make try-plugin PLUGIN=DIRECTORY" >&2; exit 1; }
	$(BIN)/pytest -m kafka tests/kafka/real_plugin.py -s --plugin $(PLUGIN) $(ARGS)

simulate: setup  ## Hosts of the tier with faults, by seed; ARGS='--seeds 0:10000 --jobs 2', '--seed N --trace', '--world owners' or 'attached'
	$(BIN)/python tools/simulate.py $(ARGS)

bench: setup java  ## keeplast beside Kafka's cleaner on the same logs, and README's table; ARGS='--resume' for doubtful rows
	$(BIN)/python -m benchmarks.run $(ARGS)
	$(BIN)/python tools/fill_readme.py --files

bench-attached: setup  ## A round in a live cluster's remote tier beside a local one, by layout; ARGS='--mib 64'
	$(BIN)/python -m benchmarks.attached $(ARGS)
	$(BIN)/python tools/fill_readme.py --files

bench-tier: setup  ## What rounds in object storage read, with filters and without
	$(BIN)/python -m benchmarks.tier $(ARGS)

bench-peers: setup java  ## The same directories by Kafka, keeplast and Spark SQL; ARGS='--scale 0.1' for minutes
	$(BIN)/python -m benchmarks.peers $(ARGS)
	$(BIN)/python tools/fill_readme.py --files

bench-growth: setup  ## Time against size, keys, partitions and cores, and what that predicts; ARGS='--scale 0.25'
	$(BIN)/python -m benchmarks.growth $(ARGS)
	$(BIN)/python -m benchmarks.cost_model
	$(BIN)/python tools/fill_readme.py --files

bench-start: setup  ## The first command of a host, 3,000 partitions, and surveys of 1 TiB; ARGS='--turns 1'
	$(BIN)/python -m benchmarks.start $(ARGS)
	$(BIN)/python -m benchmarks.large_survey

bench-console: setup  ## The console of 10,000 partitions with ten browsers; ARGS='--partitions 1000'
	$(BIN)/python -m benchmarks.console $(ARGS)

demo: setup  ## Compact a git history and a broker's directory and compare; RUNNER=local needs no Java
	@test "$(RUNNER)" = local || $(MAKE) --no-print-directory java
	$(BIN)/keeplast demo --git '$(GIT)' --runner $(RUNNER) $(ARGS)

demo-tier: setup  ## Kill and freeze the leaders of a tiered log and read it back; RUNNER=local needs no Java
	@test "$(RUNNER)" = local || $(MAKE) --no-print-directory java
	$(BIN)/keeplast demo --tier --runner $(RUNNER) $(ARGS)

demo-attach: setup java  ## Compact a tiered topic of a real broker that it starts (jars by Maven); RUNNER=local for threads, ARGS=--stay to do rounds by hand
	$(BIN)/python tools/demo_attach.py --runner $(RUNNER) $(ARGS)

demo-cdc: setup  ## Capture the tables of a PostgreSQL that it starts (package postgresql) under load, compact, compare
	rm -rf build/demo-cdc
	$(BIN)/python tools/demo_cdc.py build/demo-cdc

demo-console: setup  ## Logs of every kind in a browser, with a loop at work; CONSOLE=HOST:PORT for another address
	rm -rf build/demo-console build/demo-console-next
	$(BIN)/python tools/demo_console.py build/demo-console --run --console $(CONSOLE) --allow-actions

reference: setup  ## Generate the reference pages from the code and the scenario table from the tests
	$(BIN)/python tools/make_reference.py
	$(BIN)/python tools/fill_scenarios.py

# What the site is built with; a contributor's setup does without it.
$(DOCS_STAMP): pyproject.toml requirements.lock | setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint requirements.lock --editable '.[docs]'
	@touch $@

# Its notices of other products are not the build's.
docs docs-serve docs-version: export NO_MKDOCS_2_WARNING := 1

docs: reference $(DOCS_STAMP)  ## Generate the reference and build the site into build/site; a dead link fails
	$(BIN)/mkdocs build --strict

docs-serve: reference $(DOCS_STAMP)  ## Read the site at SITE, 127.0.0.1:9591, and see it change with the pages
	$(BIN)/mkdocs serve --livereload --dev-addr $(SITE)

docs-version: reference $(DOCS_STAMP)  ## Put the site of VERSION next to others on the branch gh-pages, as latest; nothing is pushed
	@test -n "$(VERSION)" || { echo "name the version: make docs-version VERSION=0.2" >&2; exit 1; }
	PATH="$(CURDIR)/$(BIN):$$PATH" mike deploy --update-aliases $(VERSION) latest
	PATH="$(CURDIR)/$(BIN):$$PATH" mike set-default latest

readme: setup java  ## Run the commands that README and quick start show and paste their output
	$(BIN)/python tools/fill_readme.py
	$(BIN)/python tools/followed_pages.py stores
	$(BIN)/python tools/followed_pages.py live

lock:  ## Renew requirements.lock from a fresh environment
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[spark,s3,tier,cluster,console,dev,docs,release]'
	head -n 1 requirements.lock > build/lock/requirements
	build/lock/bin/python -m pip freeze --exclude keeplast >> build/lock/requirements
	mv build/lock/requirements requirements.lock

release-check: setup  ## Build wheel and source distribution in build/release/dist, install each extra where no clone is, try it
	$(BIN)/python tools/release_check.py build/release

image: setup  ## Build the container image with docker or podman, and try it; IMAGE_BASE=NAME, ARGS=--own-base for Debian's packages
	$(BIN)/python tools/image.py build/image --base '$(IMAGE_BASE)' $(ARGS)

clean:  ## Remove what can be made again, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
