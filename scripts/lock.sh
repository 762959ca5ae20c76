#!/usr/bin/env bash
# Resolves the lock files. They hold versions and hashes for every platform, and no address, so that
# any mirror serves them.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() { # resolve OUTPUT ARGUMENT...: keeps the pins of OUTPUT that still fit
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$@"
}

resolve requirements.lock --extra dev ${UPGRADE:+--upgrade} pyproject.toml
resolve scripts/bootstrap.lock ${UPGRADE:+--upgrade} scripts/bootstrap.in
resolve scripts/node.lock ${UPGRADE:+--upgrade} scripts/node.in
resolve scripts/lowest.lock scripts/lowest.in
npm install --prefix compat/drivers/es --package-lock-only --omit=optional --no-audit --no-fund --silent
