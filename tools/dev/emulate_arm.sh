#!/usr/bin/env bash
# Compiles the native kernels for aarch64, runs kvc there under qemu with numpy alone, and
# compares with what this machine computes: with sdot, without, and in plain C++.
#   tools/dev/emulate_arm.sh FOLDER      which keeps a Python for aarch64, 140 MB, to be reused
# Needs CMake, Debian's g++-aarch64-linux-gnu and qemu-user-static, and its package mirror once.
# Says nothing of speed.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
python=.venv/bin/python

if ! [ -e "$folder/complete" ]; then
  mkdir -p "$folder"/{state/lists,cache/archives}/partial
  touch "$folder/state/status"
  apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o Dir::State="$folder/state" -o Dir::State::status="$folder/state/status"
    -o Dir::Cache="$folder/cache")
  "${apt[@]}" update
  "${apt[@]}" install --download-only -y --no-install-recommends python3 libstdc++6
  for package in "$folder"/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder/system"; done
  version=$(cd "$folder/system/usr/bin" && echo python3.*)
  "$python" -m pip install -q --target "$folder/site" --only-binary=:all: --no-deps \
    --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
    --python-version "${version#python}" numpy ml_dtypes flatbuffers
  touch "$folder/complete"
fi

rm -rf "$folder/tree" "$folder/recorded"
mkdir -p "$folder/tree" "$folder/recorded"
cp -r package "$folder/tree/kvc"
cp -r schema recipes "$folder/tree/kvc"
cp -r runtime_py "$folder/tree/kvc/runtime"
native=$folder/tree/kvc/runtime/native
rm -f "$native"/*.so
"$python" tools/dev/build_library.py --target aarch64-linux --output "$folder/library"
cp -L "$folder/library/lib/libkvc.so" "$native/_kernels.abi3.so"

"$python" tools/dev/replay.py record "$folder/recorded"
export PYTHONHOME=$folder/system/usr PYTHONPATH=$folder/tree:$folder/site
arm=(qemu-aarch64-static -L "$folder/system")
replay=("$folder"/system/usr/bin/python3.* tools/dev/replay.py replay "$folder/recorded")
for processor in neon_dot neon portable; do
  KVC_PROCESSOR=$processor "${arm[@]}" "${replay[@]}"
done
# A processor without sdot.
"${arm[@]}" -cpu cortex-a72 "${replay[@]}"
