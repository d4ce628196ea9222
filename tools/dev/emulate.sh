#!/usr/bin/env bash
# Runs the tests of the native kernels as AVX-512 VNNI computes, on a processor that has
# AVX2 alone: its instructions are emulated by SIMDe (Debian: libsimde-dev). Takes a minute
# and says nothing of speed. The library is put back afterwards.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
library=$("$python" -c "
import importlib.util
print(importlib.util.find_spec('kvc.runtime.native._kernels').origin)")
work=$(mktemp -d)
cp "$library" "$work/kept"
trap 'cat "$work/kept" > "$library"; rm -r "$work"' EXIT
mkdir "$work/include"
cat > "$work/include/immintrin.h" <<'HEADER'
#include_next <immintrin.h>
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
HEADER
flags=(-std=c++17 -O2 -fPIC -DKVC_EMULATED -fwrapv -fvisibility=hidden -ffp-contract=off
  -fno-math-errno -fno-trapping-math -Wno-psabi)
for source in runtime_py/native/*.cc; do
  as=()
  [[ $source != */products_vnni.cc ]] || as=(-mavx2 -mfma -mf16c -I "$work/include")
  g++ "${flags[@]}" "${as[@]}" -c -o "$work/$(basename "$source").o" "$source"
done
g++ "${flags[@]}" -shared -o "$library" "$work"/*.o -pthread
export KVC_PROCESSOR=avx512_vnni
"$python" -m pytest -q tests/runtime_py/native tests/end_to_end/test_native.py "$@"
