#!/bin/bash
# Runs every test of the workspace; the last thing it prints is the test runner's own summary.
# `make build` must have built the binaries that the cluster tests start.
set -euo pipefail
cd "$(dirname "$0")/.."

if cargo nextest --version >/dev/null 2>&1; then
  # .config/nextest.toml keeps the cluster tests from crowding each other
  exec cargo nextest run --locked --workspace "$@"
fi
cargo test --locked --workspace --lib --bins --tests --exclude warren-cluster-tests "$@"
exec cargo test --locked -p warren-cluster-tests "$@" -- --test-threads=1
