"""What an import of the runtime brings along."""

import subprocess
import sys

SCRIPT = """
import sys
import kvc.runtime
heavy = {"torch", "rich", "click", "safetensors", "kvc.compiler"} & set(sys.modules)
assert not heavy, heavy
"""


def test_importing_the_runtime_leaves_torch_out():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
