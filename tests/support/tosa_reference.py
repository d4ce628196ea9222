"""Arm's reference model of TOSA; `tools/dev/tosa.sh` installs it."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvc.runtime.delegates.ethosu.tosa import TosaGraph
from kvc.runtime.delegates.ethosu.tosa_file import tosa_bytes
from kvc.runtime.memory.arrays import Array

MODEL = Path(__file__).parents[2] / ".tosa/bin/tosa_reference_model"

needs_tosa = pytest.mark.skipif(
    not MODEL.exists(), reason="no TOSA reference model here: sh tools/dev/tosa.sh"
)


def reference(graph: TosaGraph, inputs: Sequence[Array], folder: Path) -> list[Array]:
    (folder / "graph.tosa").write_bytes(tosa_bytes(graph))
    for name, given in zip(graph.inputs, inputs, strict=True):
        element = graph.tensors[name].element
        np.save(folder / f"{name}.npy", given.astype(element.numpy))
    described = {
        "tosa_file": "graph.tosa",
        "ifm_name": graph.inputs,
        "ifm_file": [f"{name}.npy" for name in graph.inputs],
        "ofm_name": graph.outputs,
        "ofm_file": [f"out_{name}.npy" for name in graph.outputs],
        "expected_failure": False,
    }
    (folder / "desc.json").write_text(json.dumps(described))
    command = [str(MODEL), "--test_desc", "desc.json"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [np.load(folder / f"out_{name}.npy") for name in graph.outputs]
