"""What an import of the runtime costs."""

import subprocess
import sys

SCRIPT = """
import sys, time
import numpy, ml_dtypes, flatbuffers
began = time.process_time()
import kvc.runtime
print(time.process_time() - began)
assert "torch" not in sys.modules
"""


def seconds_to_import():
    command = [sys.executable, "-c", SCRIPT]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def test_importing_the_runtime_is_quick_and_leaves_torch_out():
    # The best of three: a busy machine doubles single figures.
    assert min(seconds_to_import() for _ in range(3)) < 0.2
