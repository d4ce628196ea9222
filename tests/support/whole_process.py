"""Measure the memory of a process that runs a bundle, and list what it imports."""

import subprocess
import sys
from pathlib import Path

from kvc.schema.container import BundleFile
from kvc.tools.reports.footprint import Footprint, describe_footprint

_RUN = """
import sys
import numpy as np
from kvc.runtime import (load)
path = sys.argv[1]
seq, threads, vocab = map(int, sys.argv[2:])
tokens = np.random.default_rng(0).integers(0, vocab, (1, seq))
with load(path, threads=threads) as program, program.session() as session:
    session.call("prefill", tokens)
    session.call("decode", np.array([[3]]))
    with open("/proc/self/status") as told:
        print(next(line for line in told if line.startswith("VmRSS")).split()[1])
"""


def resident_whole(path: Path, seq: int, threads: int, vocab: int) -> int:
    """Return the resident bytes of a process after a prompt of `seq` random tokens.

    The process runs the bundle at `path`; tokens are below `vocab`.
    """
    command = [sys.executable, "-c", _RUN, path, *map(str, (seq, threads, vocab))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout)


def foretold(path: Path, seq: int, threads: int) -> Footprint:
    """Return the footprint that the bundle's file foretells for the same process."""
    with BundleFile.open(path) as file:
        sizes = {"tokens": seq + 1, "seq": seq, "capacity": 2048, "threads": threads}
        return describe_footprint(file.program, sizes)


def modules_after(path: Path) -> set[str]:
    """Return the modules imported in a process that ran `prefill` and `decode`."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import numpy as np\n"
        "from kvc.runtime import load\n"
        "with load(sys.argv[1]) as program, program.session() as session:\n"
        "    session.prefill(np.ones((1, 4), np.int64))\n"
        "    session.decode(np.ones((1, 1), np.int64))\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())
