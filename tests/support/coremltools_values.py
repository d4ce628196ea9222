"""What coremltools computes of a package, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import mil_values
import numpy as np


def computed(
    package: Path,
    calls: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    folder: Path,
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    told, given, made = folder / "calls.json", folder / "in.npz", folder / "out.npz"
    told.write_text(json.dumps([name for name, _ in calls]))
    arrays = {
        f"{number}.{name}": array
        for number, (_, inputs) in enumerate(calls)
        for name, array in inputs.items()
    }
    np.savez(given, **arrays)
    script = Path(mil_values.__file__)
    command = [sys.executable, str(script), *map(str, (package, told, given, made))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    with np.load(made) as found:
        results = [_starting(found, f"{number}.") for number in range(len(calls))]
        return results, _starting(found, "state.")


def _starting(found: Mapping[str, np.ndarray], start: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(start): found[k] for k in found if k.startswith(start)}
