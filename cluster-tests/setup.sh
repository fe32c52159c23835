#!/bin/bash
# Installs what is missing, and nothing else; quick where nothing is.
#   setup.sh build     Rust, C and C++ compilers, libclang (for RocksDB), ccache
#   setup.sh clients   the Python and Node.js clients that the cluster tests run, under $WARREN_TEST_ENV
#   setup.sh lint      cargo-deny, under $WARREN_TOOLS
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
env_dir=${WARREN_TEST_ENV:-$HOME/.cache/warren-test-env}
tools=${WARREN_TOOLS:-$HOME/.cache/warren-tools}
deny_version=0.20.2
rustup_version=1.29.0.1
# where rustup puts Rust; behind everything else, so that another one is preferred
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# packages NAME...: installs Debian packages, or says which ones a person has to
packages() {
  [ $# -gt 0 ] || return 0
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    have sudo || die "missing: $*; install them as root and run this again"
    sudo=(sudo)
  fi
  have apt-get || die "missing: $* (names of Debian's packages); install them and run this again"
  say "installing $*"
  "${sudo[@]}" apt-get update -q </dev/null >/dev/null
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" </dev/null >/dev/null
}

has_libclang() {
  have llvm-config && compgen -G "$(llvm-config --libdir)/libclang*.so*" >/dev/null && return 0
  compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang*.so*' >/dev/null ||
    compgen -G '/usr/lib/*-linux-gnu/libclang*.so*' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ]
}

missing_for() {
  case $1 in
    build)
      have cc || echo gcc
      have c++ || echo g++
      have make || echo make
      has_libclang || echo libclang-dev
      have ccache || echo ccache
      have cargo || missing_for venv ;;
    venv)
      have python3 || echo python3
      python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || echo python3-venv ;;
    clients)
      missing_for venv
      have node || echo nodejs
      have npm || echo npm ;;
  esac
}

# current STAMP FILE...: whether the stamp was written for these very files
current() { [ -f "$1" ] && [ "$(cat "$1")" = "$(cat "${@:2}" | sha256sum)" ]; }
stamp() { cat "${@:2}" | sha256sum >"$1"; }

build() {
  have cargo && return 0
  say "Rust into ${CARGO_HOME:-$HOME/.cargo} and ${RUSTUP_HOME:-$HOME/.rustup}, with rustup"
  local venv
  venv=$(mktemp -d)
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "rustup==$rustup_version"
  ln -s rustup "$venv/bin/rustup-init" # which it is by that name
  "$venv/bin/rustup-init" -y -q --no-modify-path --profile minimal --component rustfmt --component clippy \
    --default-toolchain stable </dev/null >/dev/null 2>"$venv/log" || die "Rust cannot be installed: $(tail -n 3 "$venv/log")"
  rm -rf "$venv"
  have cargo || die "rustup installed no cargo"
}

clients() {
  mkdir -p "$env_dir"
  local wanted=$here/clients/python/requirements.txt
  if ! current "$env_dir/python/.installed" "$wanted"; then
    say "Python clients into $env_dir/python"
    python3 -m venv --clear "$env_dir/python"
    "$env_dir/python/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    stamp "$env_dir/python/.installed" "$wanted"
  fi
  local node=("$here/clients/node/package.json" "$here/clients/node/package-lock.json")
  if ! current "$env_dir/node/.installed" "${node[@]}"; then
    say "Node.js clients into $env_dir/node"
    mkdir -p "$env_dir/node"
    cp "${node[@]}" "$env_dir/node/"
    (cd "$env_dir/node" && npm ci --silent --no-audit --no-fund --ignore-scripts </dev/null)
    stamp "$env_dir/node/.installed" "${node[@]}"
  fi
}

lint() {
  cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing: rustup component add rustfmt"
  cargo clippy --version >/dev/null 2>&1 || die "clippy is missing: rustup component add clippy"
  [ "$(PATH=$tools/bin:$PATH cargo deny --version 2>/dev/null)" = "cargo-deny $deny_version" ] && return 0
  say "cargo-deny $deny_version into $tools (a few minutes, once)"
  # unoptimised: it takes a third of the time to build, and checks this workspace in a second all the same
  CARGO_TARGET_DIR=$(mktemp -d) cargo install --quiet --locked --debug --root "$tools" "cargo-deny@$deny_version"
}

[ $# -gt 0 ] || { sed -n 2,5p "$0"; exit 64; }
# shellcheck disable=SC2046 # package names hold no spaces
packages $(for part in "$@"; do missing_for "$part"; done)
for part in "$@"; do
  case $part in
    build | clients | lint) "$part" ;;
    *) die "unknown part: $part" ;;
  esac
done
