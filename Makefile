# Amberfs. `make help` lists the targets.

SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR

.PHONY: help test clean fmt lint doc licences

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## everything that must pass: style, unit tests, licences
	@scripts/install-deps.sh build test
	@scripts/test.sh

fmt: ## format the sources
	cargo fmt --all

lint: ## what `make test` says about style
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

doc: ## the crates' documentation, in target/doc
	cargo doc --workspace --no-deps --locked

licences: ## fail if something we are built from has a licence that is not on the list
	@scripts/licences.sh

clean: ## remove what was built
	cargo clean
