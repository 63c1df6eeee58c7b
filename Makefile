# `make` shows what there is. Everything runs in .venv, which `setup` makes and keeps up to date.
#   PYTHON=python3.12   the Python to build .venv with
#   ARGS="-k lease"     further arguments of the target's program
#   T=PATH::test        what `make one` runs: a test, a file, a folder, or (part of) the name of files or tests
#   WORKERS=5           processes that `make test` runs in; 0: one, as a debugger needs it
#   RUNS=5 SINCE=HEAD~1 how often `make flakes` runs, and which tests: those that have changed since then
#   SINCE=HEAD          `make types` checks only the files that have changed since then
#   ETCD=3.5.35         the etcd of `make test-etcd`
#   MINUTES=15          how long `make fuzz` and `make simulate` go on at least
#   SEED=7              the only seed of `make simulate`, printed line by line

PYTHON ?=
ARGS ?=
# More than there are processors on a small machine: tests wait most of the time, for processes that start and for
# leases that run out.
WORKERS ?= 5
ETCD ?= 3.6.16
MINUTES ?= 60
SEED ?=
RUNS ?= 5
SINCE ?=
REGISTRY ?=
T ?=
ETCD_TESTS := etcd or embedded or txn or transactions or watch or lease or election or leading or starting or ending \
	or claims or marks or three_members or doctor or restored
export PYTHON
# Set in many containers. Here every one of the hundreds of processes would compile what it imports once more.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
# Folders of modules that are no part of the packages, where definitions may go without types.
SCRIPTS = $(patsubst %/,%,$(sort $(dir $(wildcard tests/*.py demo/*.py bench/*.py bench/scale/*.py examples/*.py))))
UNTYPED := --explicit-package-bases --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls \
	--allow-untyped-decorators --allow-any-generics
STUBS := distop_pb2.py distop_pb2.pyi distop_pb2_grpc.py

# $(1) is a folder. The path on the left of = is what the stubs believe the file is called, and so how they
# import each other: from distop.proto import distop_pb2.
PROTOC = $(BIN)/python -m grpc_tools.protoc --proto_path=distop/proto=proto \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) distop/proto/distop.proto

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## make .venv from nothing, or bring it up to date
	@deploy/setup.sh

.PHONY: demo
demo: setup ## ingest a year of flights while processes are killed, and prove every row is there once
	$(BIN)/python demo/run.py $(ARGS)

# What fails is run again, alone: tests/support/verdicts.py.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --verdicts

.PHONY: test
test: setup ## the tests that need no long wait, in minutes: a real etcd, real Spark, real processes (CONTRIBUTING.md)
	$(PYTEST) -m "not slow" $(ARGS)

.PHONY: test-all
test-all: setup ## all tests, those marked `slow` included
	$(PYTEST) $(ARGS)

.PHONY: unit
unit: ## the tests that need no service (tests/unit): the first to run
	@test -x $(BIN)/python || $(MAKE) setup
	$(PYTEST) -m "not slow and not process" tests/unit $(ARGS)

.PHONY: one
one: ## T=<path::test, file, folder, or part of a name>, at once, without looking at the set-up
	@test -x $(BIN)/python || $(MAKE) setup
	@test -n "$(T)" || { echo "one: T=tests/unit/metastore, T=test_lease or T=PATH/test_lease.py::test_a_short_cut_is_survived"; exit 2; }
	@path="$(T)"; if [ -e "$${path%%::*}" ]; then $(BIN)/python -m pytest "$$path" $(ARGS); \
	else files=$$(grep -rlE --include='test_*.py' 'def \w*$(T)' tests || true; find tests -name '*$(T)*.py' -name 'test_*'); \
		[ -n "$$files" ] || { echo "one: no file of tests, and no test, has $(T) in its name"; exit 2; }; \
		$(BIN)/python -m pytest $$(sort -u <<<"$$files") -k "$(T)" $(ARGS); fi

.PHONY: flakes
flakes: setup ## how many of 1,000 tests fail on a busy machine: RUNS=5 of all tests, or of those changed SINCE=<revision>
	PYTHONPATH=tests $(BIN)/python -m flakes --runs $(RUNS) --workers $(WORKERS) $(if $(SINCE),--since $(SINCE)) $(ARGS)

.PHONY: fresh
fresh: ## `make demo` and `make test` in a bare Debian with nothing but Python, make and git, made for it; root only
	@deploy/fresh.sh

.PHONY: test-etcd
test-etcd: setup ## the tests closest to etcd, against ETCD=3.6.16, any other that Go can build, or the system's `package`
	@test -x .venv/etcd-$(ETCD)/etcd || deploy/etcd.sh .venv/etcd-$(ETCD) $(ETCD)
	DISTOP_ETCD_BINARY=$$PWD/.venv/etcd-$(ETCD)/etcd $(PYTEST) -k "$(ETCD_TESTS)" $(ARGS)

.PHONY: chaos
chaos: setup ## kill every process at every crash point, and count the rows: takes long (docs/chaos.md)
	PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

.PHONY: test-upgrade
test-upgrade: setup ## members of FROM=<commit> (default: the last release) replaced by this release one by one under load, and back again
	PYTHONPATH=tests $(BIN)/python -m upgrade $(FROM)

.PHONY: soak
soak: setup ## the same load for an hour: memory, threads, keys and time per operation must stay (docs/scaling.md)
	PYTHONPATH=tests $(BIN)/python -m soak $(ARGS)

.PHONY: explore
explore: setup ## try every order of what the processes of a table say to etcd: a quarter of an hour (docs/explore.md)
	PYTHONPATH=tests $(BIN)/python -m explore $(ARGS)

.PHONY: simulate
simulate: setup ## whole coordinators and executors on a virtual clock, with faults, for MINUTES=60; or SEED=7 again (docs/simulate.md)
	PYTHONPATH=tests $(BIN)/python -m simulate $(if $(SEED),--seed $(SEED),--minutes $(MINUTES)) $(ARGS)

.PHONY: truth
truth: setup ## each value through each way into a table, read back by each reader; and predicates: minutes (docs/truth.md)
	PYTHONPATH=tests $(BIN)/python -m truth $(ARGS)

.PHONY: fuzz
fuzz: setup ## bytes, requests and tokens of untrusted callers at every interface, for MINUTES=60
	until=$$((SECONDS + 60 * $(MINUTES))); while (( SECONDS < until )); do \
		$(BIN)/python -m pytest -q --timeout 0 --hypothesis-profile fuzz tests/integration/coordinator/fuzz $(ARGS); \
	done

.PHONY: prove-security
prove-security: setup ## the tests of who may do what, of attacks, canaries and rotation, counted (docs/security.md)
	PYTHONPATH=tests $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		-p support.proving --prove security $(ARGS)

.PHONY: prove-again
prove-again: setup ## each cell of the table in docs/again.md: what a way into a table does again after an event, counted
	@test -x .venv/etcd-$(ETCD)/etcd || deploy/etcd.sh .venv/etcd-$(ETCD) $(ETCD)
	PYTHONPATH=tests $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		-p support.proving --prove again tests/system/again $(ARGS)

.PHONY: images
images: ## build the images distop:service and distop:spark; BASE=here: on a Debian made for it (root)
	@deploy/images.sh

.PHONY: release
release: setup ## REGISTRY=<host/path>: images and chart of HEAD pushed there, and wheel, chart and checksums in build/release
	@test -n "$(REGISTRY)" || { echo "release: REGISTRY=registry.example/team says where to"; exit 2; }
	@deploy/helm.sh .venv/helm
	@deploy/release.sh "$(REGISTRY)"

.PHONY: cluster-up
cluster-up: ## a whole cluster in containers, on this machine: docs/deploying.md
	@deploy/compose/secrets.sh
	@TAGS="service spark etcd s3 prometheus" deploy/images.sh
	docker compose -f deploy/compose.yaml up --detach --wait

.PHONY: cluster-down
cluster-down: ## end it; its data stay
	docker compose -f deploy/compose.yaml down

.PHONY: cluster-demo
cluster-demo: setup ## the flights on such a cluster, while its hosts die, part and stand still: every row counted
	@if docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then \
		deploy/compose/secrets.sh && TAGS="service spark etcd s3 prometheus" deploy/images.sh; fi
	$(BIN)/python demo/cluster.py

.PHONY: cluster-test
cluster-test: setup ## such a cluster that loses hosts, disks, network, clocks; then members replaced, and etcd restored
	@deploy/compose/secrets.sh
	@TAGS="service spark etcd s3 prometheus" deploy/images.sh
	$(BIN)/python demo/cluster.py --each
	$(MAKE) test-upgrade
	$(MAKE) test-etcd ETCD=3.6.16 ETCD_TESTS="backup or restored or mending"

.PHONY: test-helm
test-helm: setup ## the tests of the Helm chart; builds helm with Go, which takes some minutes
	@deploy/helm.sh .venv/helm
	$(BIN)/python -m pytest tests/system/deployed/test_helm_chart.py $(ARGS)

.PHONY: test-kubernetes
test-kubernetes: setup ## the Helm chart on a real API server with controllers and a scheduler; builds them with Go
	@deploy/helm.sh .venv/helm
	@deploy/kubernetes.sh .venv/kubernetes
	$(BIN)/python -m pytest tests/system/deployed/test_kubernetes.py $(ARGS)

.PHONY: test-yarn
test-yarn: setup ## executors on a real YARN with a packed Python; Maven and pip download what it needs
	@deploy/yarn.sh .venv/yarn
	$(BIN)/python -m pytest tests/system/deployed/test_yarn.py $(ARGS)

.PHONY: test-alerts
test-alerts: setup ## the alert rules, in the promtool of Debian's package prometheus
	@deploy/prometheus.sh .venv/prometheus
	$(BIN)/python -m pytest tests/system/deployed/test_alerts.py $(ARGS)

.PHONY: conformance
conformance: setup ## pyiceberg's and Iceberg's own tests and engines against the catalog; downloads them
	$(BIN)/python tests/conformance/run.py $(ARGS)

.PHONY: lint
lint: setup ## ruff: rules and format; words that have a usual one (tests/words.toml)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/check_words.py

.PHONY: format
format: setup ## let ruff correct what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: setup ## mypy: strict for the packages, less so for tests and scripts; SINCE=HEAD: only files changed since then
ifeq ($(SINCE),)
	$(BIN)/mypy $(ARGS)
	for folder in $(SCRIPTS); do $(BIN)/mypy $(UNTYPED) $$folder; done
	$(BIN)/mypy --explicit-package-bases $(filter-out examples/test_%, $(wildcard examples/*.py))
else
	@packages=() scripts=(); while read -r path; do \
		if [ -e "src/distop/$$path" ]; then packages+=("src/distop/$$path"); \
		elif [[ $$path != @(docs|integrations)/* ]]; then scripts+=("$$path"); fi; \
	done < <(git diff --name-only --diff-filter=d $(SINCE) -- '*.py'); \
	[ $${#packages[@]} = 0 ] || $(BIN)/mypy "$${packages[@]}" $(ARGS); \
	[ $${#scripts[@]} = 0 ] || $(BIN)/mypy $(UNTYPED) "$${scripts[@]}"
endif

.PHONY: layers
layers: setup ## import-linter: arrows between folders and rooms only point down, without circles
	$(BIN)/lint-imports --no-logo

.PHONY: docs
docs: setup ## the documentation as a site, in build/site; a link that leads nowhere fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet $(ARGS)

.PHONY: rooms
rooms: setup ## draw docs/rooms.svg: which room imports which
	$(BIN)/python docs/rooms.py

.PHONY: proto
proto: setup ## regenerate the stubs from proto/distop.proto
	@new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; $(call PROTOC,"$$new"); \
	for stub in $(STUBS); do cp "$$new/distop/proto/$$stub" proto/; done

.PHONY: proto-check
proto-check: setup ## fail if the committed stubs are not what proto/distop.proto gives
	@new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; $(call PROTOC,"$$new"); \
	for stub in $(STUBS); do \
		diff -u "proto/$$stub" "$$new/distop/proto/$$stub" || { echo "stale: run make proto"; exit 1; }; \
	done; echo "the stubs are current"

.PHONY: bench
bench: bench-completions bench-spark bench-failover ## the three below

.PHONY: bench-completions
bench-completions: setup ## completions per second, against raw etcd transactions
	$(BIN)/python bench/completions.py $(ARGS)

.PHONY: bench-spark
bench-spark: setup ## jobs of an operation against a bare Spark stage
	$(BIN)/python bench/spark.py $(ARGS)

.PHONY: bench-write
bench-write: setup ## 5 million rows into a table from Spark, against Spark's own Parquet writer
	$(BIN)/python bench/write.py $(ARGS)

.PHONY: bench-failover
bench-failover: setup ## time from the loss of a leader to the next one
	$(BIN)/python bench/failover.py $(ARGS)

.PHONY: bench-backlog
bench-backlog: setup ## small batches drained per second, and how fairly 200 tables share
	$(BIN)/python bench/backlog.py $(ARGS)

.PHONY: bench-index
bench-index: setup ## one value looked up in a table of 2,000 files, with and without an index
	$(BIN)/python bench/index.py $(ARGS)

.PHONY: bench-commit
bench-commit: setup ## publishing F files, against Spark's FileOutputCommitter, on local disk and on S3
	$(BIN)/python bench/commit.py $(ARGS)

.PHONY: bench-security
bench-security: setup ## the same operations with TLS, tokens and a policy, and without, in turns
	$(BIN)/python bench/security.py $(ARGS)

.PHONY: bench-catalog
bench-catalog: setup ## commits per second to one table and to 100, against pyiceberg's catalog on SQLite
	$(BIN)/python bench/catalog.py $(ARGS)

.PHONY: bench-merge
bench-merge: setup ## rows merged into a table by keys, against Spark's join and pyiceberg's upsert
	$(BIN)/python bench/merge.py $(ARGS)

.PHONY: screenshots
screenshots: setup ## pictures of every page from a run with kills, in build/screenshots; needs Chromium
	PYTHONPATH=tests $(BIN)/python tests/screenshots.py $(ARGS)

.PHONY: bench-page
bench-page: setup ## the page with 10,000 tables and an operation of 100,000 jobs
	$(BIN)/python bench/page.py $(ARGS)

.PHONY: bench-scale
bench-scale: setup ## how cost grows with executors, tables, watchers, watermarks and history (docs/scaling.md, docs/sizing.md)
	PYTHONPATH=bench $(BIN)/python bench/scale/run.py $(ARGS)

.PHONY: clean
clean: ## remove .venv, caches and what runs left
	rm -rf .venv build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	rm -rf demo/work bench/work spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
