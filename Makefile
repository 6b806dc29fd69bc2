# Headstone's commands. Each does its own set-up: a machine needs only Python 3.11+ and Java 17+.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14 python)

# An active virtual environment or another Spark must not leak into ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX SPARK_HOME SPARK_CONF_DIR SPARK_REMOTE
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.PHONY: help demo test test-all bench kafka format clean install java

help:
	@echo "make demo     compact three replicas of a sample topic on local Spark, show what may go when, leave a report"
	@echo "make test     linters, types, layers, and the tests that protect a rule: twelve minutes or so on two cores"
	@echo "make test-all those and all others, as CI does: most of an hour"
	@echo "make bench    measure compaction"
	@echo "make kafka    three real Kafka brokers on this machine until Ctrl-C (needs Maven, or KAFKA_HOME)"
	@echo "make format   rewrite the sources in the house format"
	@echo "make clean    remove build products and caches (not $(VENV))"

demo: java install
	@$(BIN)/headstone demo

test: java install
	@$(BIN)/python -m tests.run

test-all: java install
	@$(BIN)/python -m tests.run --all

bench: java install
	@for codec in none lz4 zstd; do $(BIN)/python -m benchmarks.compact --codec $$codec || exit 1; done

kafka: java install
	@$(BIN)/python -m testbed up

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache spark-warehouse metastore_db derby.log
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

install: $(INSTALLED)

$(INSTALLED): pyproject.toml $(BIN)/python | java
	@echo "Installing Headstone and its tools into $(VENV) (some minutes the first time)" >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@echo "Compiling kernels and making Spark's start shorter (once)" >&2
	@$(BIN)/python -m headstone.spark.warmup
	@touch $@

$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "Creating $(VENV) with $$("$$python" --version)" >&2; \
	        "$$python" -m venv --clear $(VENV) && exit 0; \
	        rm -rf $(VENV); exit 1; \
	    fi; \
	done; \
	echo "Headstone needs Python 3.11 or newer with its venv module; none of these is: $(PYTHONS). Install it:" >&2; \
	echo "  Debian, Ubuntu   sudo apt-get install python3 python3-venv" >&2; \
	echo "  macOS            brew install python@3.12" >&2; \
	echo "or name one: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1

# Spark runs $JAVA_HOME/bin/java where JAVA_HOME is set, and the PATH's java otherwise: so does this check.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${version:-0}" -ge 17 ]; then exit 0; fi; \
	if [ -n "$$version" ]; then \
	    echo "Headstone needs Java 17 or newer for Spark; $$java is older. Install it:" >&2; \
	else \
	    echo "Headstone needs Java 17 or newer for Spark; $$java does not run. Install it:" >&2; \
	fi; \
	echo "  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless" >&2; \
	echo '  macOS            brew install openjdk@17 && export JAVA_HOME="$$(brew --prefix openjdk@17)"' >&2; \
	echo "or set JAVA_HOME to a Java 17 that is already there." >&2; \
	exit 1
