#!/bin/sh
# Install Arm's TOSA reference model into .tosa, an environment of its own, since its
# packages pin others than kvc's; and run the tests that compare with it.
set -e
cd "$(dirname "$0")/../.."
test -x .tosa/bin/tosa_reference_model || {
    "${PYTHON:-python3}" -m venv .tosa
    .tosa/bin/pip install --quiet tosa-tools==2026.8.0
}
python -m pytest -q tests/runtime_py/delegates/ethosu tests/end_to_end/test_ethosu*.py
