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
.PHONY: help setup setup-build setup-clients setup-lint build release install run test lint bench

# Where `make install` puts things; DESTDIR before it for packagers.
PREFIX ?= /usr/local
DESTDIR ?=
TOOLS := rabbitmqctl rabbitmq-diagnostics rabbitmq-queues rabbitmq-upgrade rabbitmq-server

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

install: release ## install the binary, RabbitMQ's names for it, and completion for shells (PREFIX, DESTDIR)
	install -D -m 755 $(CARGO_TARGET_DIR)/release/warren $(DESTDIR)$(PREFIX)/bin/warren
	for tool in $(TOOLS); do ln -sfn warren $(DESTDIR)$(PREFIX)/bin/$$tool; done
	for tool in warren $(filter-out rabbitmq-server,$(TOOLS)); do \
	  install -D -m 644 node/completions/warren.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$tool; done
	install -D -m 644 node/completions/_warren $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_warren
	install -D -m 644 node/completions/warren.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/warren.fish

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
