#!/usr/bin/env bash
# Make .venv with kvc in it, editable. All it needs is Python 3.11 or later.
#   tools/dev/setup.sh          to use kvc
#   tools/dev/setup.sh dev      to work on it: test and check tools as well
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "kvc needs Python 3.11 or later; python3 is $(python3 --version)" >&2
    exit 1
}
echo "setting up .venv; the first time this fetches PyTorch, a few minutes" >&2
test -x .venv/bin/python || python3 -m venv .venv
.venv/bin/python -m pip install --quiet torch==2.13.0
# Three shared libraries of this wheel are used, nothing of it is imported: see README.md.
.venv/bin/python -m pip install --quiet --no-deps executorch==1.5.1 ||
    echo "no executorch 1.5.1 for this machine: the backend xnnpack runs its reference" >&2
.venv/bin/python -m pip install --quiet --editable ".${1:+[$1]}"
.venv/bin/python tools/dev/link_types.py
