"""Wall time of starting: commands that look at a bundle, and imports.

`python tests/benchmarks/startup.py BUNDLE`. Each is started fifteen times; minimum and
median are printed, beside an import of numpy, which none but `--help` and `recipes`
can do without. Python may keep compiled modules, as it does for users.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

KVC = str(Path(sys.executable).parent / "kvc")
ROUNDS = 15


def seconds(command: list[str]) -> list[float]:
    """Return the wall time of each of ROUNDS starts."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(command, check=True, capture_output=True, env=environment)
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        taken.append(time.perf_counter() - begin)
    return taken


def main() -> None:
    """Measure and print."""
    bundle = sys.argv[1]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import numpy": [sys.executable, "-c", "import numpy"],
        "kvc.runtime": [sys.executable, "-c", "from kvc.runtime import load"],
        "kvc --help": [KVC, "--help"],
        "kvc dump": [KVC, "dump", bundle],
        "kvc generate, a token": [KVC, "generate", bundle, "5 6 7", "-n", "1"],
        "import torch": [sys.executable, "-c", "import torch"],
    }
    for name, command in commands.items():
        taken = seconds(command)
        median = statistics.median(taken)
        sys.stdout.write(f"{name:21} min {min(taken):.3f} s, median {median:.3f} s\n")


if __name__ == "__main__":
    main()
