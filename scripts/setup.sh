#!/usr/bin/env bash
# Makes .venv and the Node driver's packages what the lock files say. Each step is skipped when its
# inputs are those of the last run. A missing Python package fails; a missing optional piece (Node)
# is written to .venv/missing, which scripts/check.py reports, and fails only in CI.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
es=compat/drivers/es
node_major_min=20 # protoc-gen-es refuses an older one

# The tools below are quiet, and a first run takes half a minute: silence would look like a hang.
if [[ ! -f .venv/stamp-node ]]; then
  echo "setup: installing into .venv, once; this takes about half a minute" >&2
fi

fingerprint() { cat "$@" | cksum; }
unchanged() { [[ -f $1 && $(<"$1") == "$2" ]]; }

if [[ ! -x .venv/bin/python ]]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: Python 3.11 or newer is needed; name it with make PYTHON=..." >&2
    exit 1
  }
  "$python" -m venv .venv
fi

# uv is part of the environment, so that it never depends on what else a machine has.
now=$(fingerprint scripts/bootstrap.lock)
if ! unchanged .venv/stamp-uv "$now"; then
  .venv/bin/python -m pip install --quiet --require-hashes -r scripts/bootstrap.lock
  echo "$now" >.venv/stamp-uv
fi

uv=(.venv/bin/uv --quiet --no-progress)
export VIRTUAL_ENV=$PWD/.venv

now=$(fingerprint pyproject.toml requirements.lock)
if ! unchanged .venv/stamp-python "$now"; then
  "${uv[@]}" pip install --require-hashes -r requirements.lock
  # The backend is in the lock, so the project itself installs without fetching anything.
  "${uv[@]}" pip install --no-deps --no-build-isolation --editable .
  echo "$now" >.venv/stamp-python
fi

# Beside the environment, not in it: the goldens are checked on this runtime as well.
now=$(fingerprint scripts/lowest.lock)
if ! unchanged .venv/stamp-lowest "$now"; then
  rm -rf .venv/lowest
  "${uv[@]}" pip install --require-hashes --target .venv/lowest -r scripts/lowest.lock
  echo "$now" >.venv/stamp-lowest
fi

node_is_new_enough() {
  local version
  version=$(node --version 2>/dev/null) || return 1
  version=${version#v}
  ((${version%%.*} >= node_major_min))
}

install_node() {
  node_is_new_enough && return
  "${uv[@]}" pip install --require-hashes -r scripts/node.lock
}

: >.venv/missing
PATH=$PWD/.venv/bin:$PATH
now=$(fingerprint "$es/package.json" "$es/package-lock.json" scripts/node.lock)
if ! unchanged .venv/stamp-node "$now" || [[ ! -d $es/node_modules ]]; then
  if ! install_node; then
    echo "Node $node_major_min or newer: the protobuf-es driver can't run" >>.venv/missing
  elif ! npm ci --prefix "$es" --omit=optional --no-audit --no-fund --silent; then
    echo "npm packages of $es: the protobuf-es driver can't run" >>.venv/missing
  else
    echo "$now" >.venv/stamp-node
  fi
fi

if [[ -s .venv/missing ]]; then
  sed 's/^/setup: missing: /' .venv/missing >&2
  [[ ${CI:-} != true ]] || exit 1
fi
