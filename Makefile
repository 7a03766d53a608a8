# Everything a fresh machine needs is installed by the first target that needs it: Python packages into .venv from
# requirements.lock, and a Java runtime where there is none. Nothing is fetched twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
# PySpark and Python: each PySpark with one Python that it knows, the newest one with all of them. "lowest" has the lowest
# versions of all extras, and runs a job with each.
COMPAT := lowest-3.11 3.5-3.11 4.0-3.12 4.1-3.13 4.2-3.13 4.3-3.11 4.3-3.12 4.3-3.13 4.3-3.14
# What depends on Spark: sessions, jobs, clusters, streaming queries, DataFrames.
COMPAT_TESTS := $(addprefix tests/,cluster run/test_semantics.py read/test_views.py run/test_committing.py \
	run/test_partitions_in_executors.py engine/test_repartitioning.py fluent/test_resources.py spouts/spark/test_dataframe_spout.py \
	spouts/spark/test_structured_streaming.py run/test_foreach_batch.py)
LOCK_EXTRAS := dev all
MIN_JAVA := 17
SOURCES := $(foreach folder,trident states spouts examples tests,$(if $(wildcard $(folder)/*.py),$(folder)))
# The name of the stamp says what is installed: another lock or another pyproject.toml is another stamp.
STAMP := .venv/installed-$(shell cat requirements.lock pyproject.toml 2>/dev/null | cksum | tr -d ' ')
# Its own variable beats pip's, which beats a wait that is long enough for Spark's 400 MB.
export UV_HTTP_TIMEOUT ?= $(or $(PIP_DEFAULT_TIMEOUT),300)
export UV_PYTHON_DOWNLOADS := never
export PIP_ROOT_USER_ACTION := ignore

# What a package manager installs, which needs root.
PACKAGED := redis-server memcached postgres chromium mvn
ON_PATH := PATH="$$PATH:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"

.PHONY: help demo reach words ledger docs site screenshots test full quick compat check lint format types bench pairs soak proof servers announce lock clean install java

help: ## show this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

demo: install java ## count the words of Python's standard library on Spark, and compare them with a plain count
	@$(BIN)/trident demo

reach: install build/services/redis-server ## answer over HTTP how many people saw a link (examples/reach.py), from a real Redis
	@$(BIN)/python -m tests.harness.with_servers redis -- examples/reach.py

words: install java build/services/kafka build/services/redis-server ## count words from Kafka in Redis and look them up over HTTP (examples/kafka_words.py)
	@$(BIN)/python -m tests.harness.with_servers kafka redis -- examples/kafka_words.py

ledger: install java build/services/kafka ## balances from a topic, exact although the job is killed, with an audit (examples/ledger.py)
	@$(BIN)/python -m tests.harness.with_servers kafka -- examples/ledger.py

# A part of the suite is done before a second process of tests and its JVM have started.
test: install java servers build/spark.jsa ## run the test suite (ARGS="-k name" for a part of it, in one process)
	@$(BIN)/python -m pytest $(if $(strip $(ARGS)),$(ARGS),-n auto)

full: install java servers build/spark.jsa ## run the test suite with all cases of each test: about an hour on two cores
	@$(BIN)/python -m pytest -m "not soak" $(if $(strip $(ARGS)),$(ARGS),-n auto)

quick: install ## run the tests that need neither Java nor a server
	@$(BIN)/python -m pytest -m quick $(if $(strip $(ARGS)),$(ARGS),-n auto)

check: lint types test ## what a change must pass: format, lint, types, tests

lint: install ## check format and lint
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)

format: install ## format the sources and fix what lint can fix
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

types: install ## check the types
	@$(BIN)/mypy $(SOURCES)

docs: install ## write the tables of options and settings in docs/ from the code
	@$(BIN)/python -m tests.command_list
	@$(BIN)/python -m tests.settings_tables

site: install ## build the site with the reference of all exported names, build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "open build/site/index.html"

screenshots: install servers ## take pictures of the page, in build/screenshots, and those of the README, in docs/images
	@$(BIN)/python -m tests.web.screenshots $(ARGS)

bench: install java servers ## measure the word count, the stores' commits and DRPC (ARGS, COMMITS, DRPC: their options)
	@$(BIN)/python -m tests.benchmarks.wordcount $(ARGS)
	@$(BIN)/python -m tests.benchmarks.commits $(COMMITS)
	@$(BIN)/python -m tests.benchmarks.drpc $(DRPC)

pairs: install java servers ## measure this checkout beside another one, in turns (BASE: the other one, ARGS: options)
	@$(BIN)/python -m tests.benchmarks.pairs $(BASE) $(ARGS)

benchmarks: install java servers ## measure everything once and draw it, in docs/benchmarks (ARGS: figures, --quick)
	@$(BIN)/python -m tests.benchmarks.benchmark_pictures $(ARGS)

compat: install java servers ## run tests of what depends on Spark on each PySpark, 3.5 to 4.3, and each Python that is here (COMPAT: pairs)
	@for pair in $(COMPAT); do \
		if ! "python$${pair#*-}" -c '' 2>/dev/null; then missing="$${missing:-} $$pair"; continue; fi; \
		echo "PySpark $${pair%-*}, Python $${pair#*-}"; \
		$(MAKE) build/compat/$$pair/$(notdir $(STAMP)) && \
			build/compat/$$pair/bin/python -m pytest -q -m spark -k "not kill" $(COMPAT_TESTS) $(ARGS) && \
		{ [ "$$pair" != lowest-3.11 ] || build/compat/$$pair/bin/python -m pytest -q -m "" tests/test_extras.py; } \
			|| failed="$${failed:-} $$pair"; \
	done; \
	if [ -n "$${missing:-}" ]; then echo "not run, because no such Python is on PATH:$$missing" >&2; fi; \
	if [ -n "$${failed:-}" ]; then echo "failed:$$failed" >&2; exit 1; fi

# The versions of the lock, but for Spark's.
$(COMPAT:%=build/compat/%/$(notdir $(STAMP))): build/compat/%/$(notdir $(STAMP)): | build/uv.path
	@uv=$$(cat build/uv.path); pair=$*; spark=$${pair%-*}; here=build/compat/$*; \
	echo "installing PySpark $$spark into $$here" >&2; \
	$$uv venv --quiet --clear --python "$$(command -v python$${pair#*-})" $$here; \
	if [ "$$spark" = lowest ]; then \
		$$uv pip install --quiet --python $$here/bin/python --resolution lowest-direct -r pyproject.toml --extra all; \
		$$uv pip freeze --quiet --python $$here/bin/python >$$here/constraints.txt; spark=3.5; \
	else sed -n 's/ *\\$$//; s/^\([a-z][^ =]*\)\[[^]]*\]==/\1==/; /^[a-z].*==/p' requirements.lock \
		| grep -Ev '^(pyspark|py4j)==' >$$here/constraints.txt; fi; \
	$$uv pip install --quiet --python $$here/bin/python --constraint $$here/constraints.txt -r pyproject.toml \
		$(addprefix --extra ,$(LOCK_EXTRAS)) "pyspark==$$spark.*"; \
	$$uv pip install --quiet --python $$here/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

soak: install java servers build/services/azurite build/spark.jsa ## the long tests: random failures, for minutes to hours
	@$(BIN)/python -m pytest -m soak --timeout 7200 $(ARGS)

proof: install java servers build/spark.jsa ## print the table of docs/internals/proof.md, in hours (ARGS="--row P2 --minutes 5" for a part of it)
	@$(BIN)/python -m tests.proof $(ARGS)

servers: java announce $(PACKAGED:%=build/services/%) build/services/cassandra build/services/kafka build/services/zookeeper build/services/s3 ## install the servers that tests start

lock: build/uv.path ## refresh requirements.lock (without names of hosts, so that any mirror will do)
	@$$(cat build/uv.path) pip compile --quiet --upgrade --universal --generate-hashes --no-header --no-emit-index-url \
		$(addprefix --extra ,$(LOCK_EXTRAS)) --output-file requirements.lock pyproject.toml

clean: ## remove everything that can be made again
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage spark-warehouse metastore_db
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(STAMP)

$(STAMP): | build/uv.path
	@uv=$$(cat build/uv.path); python=$$(cat build/python.path); \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		$$uv venv --quiet --clear --python "$$python" .venv; \
	fi; \
	echo "installing the packages of requirements.lock into .venv" >&2; \
	$$uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock; \
	$$uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@rm -f .venv/installed-* && touch $@

# uv: the one on PATH, else one under build/ (pip's --target also works where Python is "externally managed").
build/uv.path: | build/python.path
	@if uv --version >/dev/null 2>&1; then echo uv >$@; exit; fi; \
	python=$$(cat build/python.path); \
	if ! "$$python" -m pip install --quiet --disable-pip-version-check --target build/uv uv; then \
		echo "uv, which installs the packages, is missing, and \"$$python -m pip\" could not install it." >&2; \
		echo "Install pip (Debian, Ubuntu: apt-get install python3-pip) or uv, then run make again." >&2; \
		exit 1; \
	fi; \
	echo "$(CURDIR)/build/uv/bin/uv" >$@

build/python.path:
	@mkdir -p build; \
	for python in python3 python3.13 python3.12 python3.11; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			"$$python" -c 'import sys; print(sys.executable)' >$@; exit; \
		fi; \
	done; \
	echo "Python 3.11 or newer is needed; neither python3 nor python3.11, 3.12 or 3.13 on PATH is one." >&2; \
	echo "Install one (Debian, Ubuntu: apt-get install python3), then run make again." >&2; \
	exit 1

announce: # what needs root is said before it is done
	@missing=; for each in $(PACKAGED); do \
		if ! $(ON_PATH) command -v $$each >/dev/null; then missing="$$missing $$each"; fi; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "The tests need these commands; they are installed with apt-get, as root, unless you install them first:$$missing" >&2; \
	fi

# Debian's names of the packages are those of the commands, but for two. Its packages of servers start nothing where no
# init runs; tests never use a server that was there before. Its PostgreSQL is not on PATH.
$(PACKAGED:%=build/services/%): build/services/%:
	@mkdir -p $(@D); package=$(patsubst postgres,postgresql,$(*:mvn=maven)); \
	if ! $(ON_PATH) command -v $* >/dev/null; then \
		root=; if [ "$$(id -u)" != 0 ]; then root="sudo -n"; fi; \
		echo "installing $$package with apt-get, as root" >&2; \
		if ! { command -v apt-get && $$root apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			$$root apt-get -qq -y install --no-install-recommends $$package; } >&2; \
		then \
			echo "The tests need $*, and it could not be installed. Install $$package (Debian, Ubuntu: apt-get install" >&2; \
			echo "$$package; Fedora: dnf install $$package; macOS: brew install $$package), then run make again." >&2; \
			exit 1; \
		fi; \
	fi; \
	touch $@

# Copied aside and then moved: a folder that is there is complete.
build/services/cassandra build/services/kafka build/services/zookeeper build/services/spark-kafka build/services/storm: build/services/%: tests/services/pom.xml | build/services/mvn
	@echo "fetching the jars of $* into $@" >&2; rm -rf $@ $@.part; \
	mvn -B -q -Dstyle.color=never -f $< -P $* org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$@.part 2>&1 | sed $$'s/\e\\[[0-9;]*m//g' >&2; \
	mv $@.part $@ && touch $@

# In an environment of its own: it needs a dozen packages that nothing else does.
build/services/s3: tests/services/s3.txt | build/uv.path build/python.path
	@echo "installing the S3 server of the tests into $@" >&2; rm -rf $@; uv=$$(cat build/uv.path); \
	$$uv venv --quiet --python "$$(cat build/python.path)" $@; \
	$$uv pip install --quiet --python $@/bin/python --requirements $< || { rm -rf $@; exit 1; }; \
	touch $@

# Of the soak alone: it needs Node.js.
build/services/azurite:
	@echo "installing Azurite into $@" >&2; mkdir -p $@.part; \
	npm install --silent --no-audit --no-fund --prefix $@.part azurite@3.35.0 >&2 || { rm -rf $@.part; exit 1; }; \
	mv $@.part $@

# Not needed: with it each Spark of the tests starts sooner.
build/spark.jsa: $(STAMP) | java
	@echo "archiving the classes of Spark for Java, in $@" >&2; $(BIN)/python -m tests.harness.quick_java $@ 2>/dev/null || \
		echo "Java could not make $@; tests run without it, more slowly" >&2

java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	major() { "$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1; }; \
	found=$$(major || true); \
	if [ "$${found:-0}" -ge $(MIN_JAVA) ]; then exit; fi; \
	root=; if [ "$$(id -u)" != 0 ]; then root="sudo -n"; fi; \
	if [ -z "$${JAVA_HOME:-}" ] && command -v apt-get >/dev/null && $$root true 2>/dev/null; then \
		echo "installing a Java runtime with apt-get, as root: openjdk-$(MIN_JAVA)-jre-headless" >&2; \
		if { $$root apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			$$root apt-get -qq -y install --no-install-recommends openjdk-$(MIN_JAVA)-jre-headless; } >&2; \
		then exit; fi; \
	fi; \
	echo "Spark needs Java $(MIN_JAVA) or newer; found: $${found:-none} ($$java)." >&2; \
	echo "Install one (Debian, Ubuntu: apt-get install openjdk-$(MIN_JAVA)-jre-headless; Fedora: dnf install" >&2; \
	echo "java-$(MIN_JAVA)-openjdk-headless; macOS: brew install openjdk@$(MIN_JAVA)) or set JAVA_HOME, then run make again." >&2; \
	exit 1
