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
PIP=(.venv/bin/python -m pip install --quiet --no-warn-conflicts)
TORCH=torch==2.13.0
CPU_BUILDS=https://download.pytorch.org/whl/cpu

# On Linux the ordinary index may have the CUDA build, which works and takes 4.7 GB.
# PyTorch's own index is asked first, unless it does not answer at once.
cpu_builds_answer() {
    timeout 4 .venv/bin/python -c \
        'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=3).read(1)' \
        "$CPU_BUILDS/torch/" 2>/dev/null
}
if .venv/bin/python -m pip show --quiet torch 2>/dev/null; then
    "${PIP[@]}" "$TORCH"
elif ! { cpu_builds_answer && "${PIP[@]}" --index-url "$CPU_BUILDS" "$TORCH"; }; then
    echo "PyTorch comes from the ordinary package index" >&2
    "${PIP[@]}" "$TORCH"
fi
# Three shared libraries of this wheel are used, nothing of it is imported: see recipes/README.md.
"${PIP[@]}" --no-deps executorch==1.5.1 ||
    echo "no executorch 1.5.1 for this machine: the backend xnnpack runs its reference" >&2
"${PIP[@]}" --editable ".[${1:-compile}]"
.venv/bin/python tools/dev/link_types.py
