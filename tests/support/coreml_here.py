"""What coremltools computes of a package: tests that need it are skipped without it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import mil_values
import numpy as np
import pytest

from kvc.runtime.delegates.coreml.package import check_coremltools
from kvc.schema.errors import MissingLibrary


def check() -> None:
    """Skip a test where coremltools is missing."""
    try:
        check_coremltools()
    except MissingLibrary as error:
        pytest.skip(str(error))


def computed(
    package: Path,
    calls: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    folder: Path,
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return what calls of functions give, one after another, and the states then."""
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
