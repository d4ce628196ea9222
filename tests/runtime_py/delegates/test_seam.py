"""The seam to backends: a program that is all delegated needs no torch."""

import subprocess
import sys

from delegated_partitions import delegated_program
from hand_built import write_bundle

SCRIPT = """
import sys
import numpy as np
from kvc.runtime import (load)
from kvc.runtime.execution.delegate import (Delegate, Handle)
from kvc.runtime.delegates.table import (DELEGATES)

class Doubling(Delegate):
    def __init__(self, options):
        pass
    def init(self, partition, data):
        return Doubles()
    def close(self):
        print("backend closed")

class Doubles(Handle):
    def prepare(self, inputs, outputs, workspace, sizes):
        def run():
            for out in outputs:
                out[:] = 2 * inputs[0].reshape(out.shape)
        return run
    def close(self):
        print("handle closed")

DELEGATES["xnnpack"] = Doubling
with load(sys.argv[1]) as program:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    turned, doubled, again = program.forward(x)
    assert np.array_equal(doubled, 2 * x)
    assert np.array_equal(turned, 2 * x.reshape(4, 2))
assert "torch" not in sys.modules
"""


def test_a_program_of_delegates_alone_never_imports_torch(tmp_path):
    path = write_bundle(tmp_path / "d.kvc", delegated_program())
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "handle closed\nbackend closed\n"
