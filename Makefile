# What a person types; `make` alone lists it. The work is in cargo and in the scripts that these lines name.

SHELL := /bin/bash
CARGO ?= cargo

# Build products and test tools stay outside the clone, so that clones share them.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/warren-target
export WARREN_TEST_ENV ?= $(HOME)/.cache/warren-test-env
export WARREN_TOOLS ?= $(HOME)/.cache/warren-tools
export PATH := $(WARREN_TOOLS)/bin:$(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# One compiler cache serves the C++ of every profile and clone.
ifneq ($(shell command -v ccache),)
ifeq ($(origin CC),default)
export CC := ccache cc
endif
ifeq ($(origin CXX),default)
export CXX := ccache c++
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-build setup-clients setup-lint build release run test lint bench

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 16

setup: ## install what building, testing and linting need (Debian packages, Python and Node.js clients, cargo-deny)
	@cluster-tests/setup.sh build clients lint

setup-build:
	@cluster-tests/setup.sh build

setup-clients:
	@cluster-tests/setup.sh build clients

setup-lint:
	@cluster-tests/setup.sh build lint

build: setup-build ## build everything, tests included, unoptimised
	$(CARGO) build --locked --workspace --bins --tests

release: setup-build ## build the warren binary, optimised
	$(CARGO) build --locked --release -p warren

run: release ## three nodes on loopback, until Ctrl-C
	@cluster-tests/local-cluster.sh $(CARGO_TARGET_DIR)/release/warren

test: setup-clients build ## every test, those with real clusters and clients included
	@cluster-tests/run-tests.sh

lint: setup-lint ## formatting, clippy, licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) deny --log-level error check licenses bans sources

bench: release ## throughput and latency of one node and of three, printed
	@cluster-tests/bench.sh $(CARGO_TARGET_DIR)/release/warren
