#!/usr/bin/env bash
# Set up, then check everything: format, lint, types, tests, wheel.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/dev/setup.sh dev
.venv/bin/python tools/dev/check.py "$@"
