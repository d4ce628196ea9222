#!/usr/bin/env bash
# Compile and run trained models that packages of the Python index ship: some 250 MB, and
# ten minutes. Sounds are spoken by espeak-ng, where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/dev/setup.sh dev
exec .venv/bin/python -m pytest -m real -p no:cacheprovider tests/real "$@"
