"""What a process imports that runs a bundle."""

import subprocess
import sys
from pathlib import Path


def modules_after(path: Path) -> set[str]:
    """Return what a process has imported that has called both methods of a bundle."""
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
