#!/usr/bin/env bash
# Set up, then compile the built-in model, look inside the bundle, and run it.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/dev/setup.sh
PATH="$PWD/.venv/bin:$PATH"
set -x
kvc compile demo --recipe cpu_q8 -o demo.kvc
kvc dump demo.kvc
kvc generate demo.kvc "def " --max-tokens 300 --seed 23
{ set +x; } 2>/dev/null
echo 'For the command kvc in this shell: . .venv/bin/activate' >&2
