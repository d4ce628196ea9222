"""A device of the backend `qnn` that is numpy: everything but Qualcomm's library.

It takes the requests of `runtime_py/delegates/qnn/worker.py` in this process, reads the
files that the library would read, and runs models in float16 or on integers. `ASKED`
lists the requests that it has got.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from numpy_process import NumpyProcess
from onnx_models import read_model, run_model

from kvc.runtime.delegates.qnn import Qnn, backend
from kvc.runtime.delegates.qnn.context import Context
from kvc.runtime.delegates.subprocess_calls import WEIGHTS

ASKED: list[str] = []


class NumpyDevice(NumpyProcess):
    asked = ASKED

    def _build(self, descriptor: int | None, name: str, model: str, arch: int) -> None:
        raw = (self.folder / model).read_bytes()
        self._known[name] = read_model(raw, self.folder)

    def _store(self, descriptor: int | None, name: str, model: str, arch: int) -> str:
        raw = (self.folder / model).read_bytes()
        read_model(raw, self.folder)
        weights = (self.folder / WEIGHTS).read_bytes()
        made = f"context {arch} {raw.hex()} {weights.hex()}"
        (self.folder / f"{name}_qnn.bin").write_text(made)
        return f"graph of {name}"

    def _load(self, descriptor: int | None, name: str, model: str, arch: int) -> None:
        (node,) = read_model((self.folder / model).read_bytes()).nodes
        assert (node.op, node.domain) == ("EPContext", "com.microsoft")
        content = (self.folder / str(node.attributes["ep_cache_context"])).read_bytes()
        magic, built_for, raw, weights = content.decode().split(" ")
        assert (magic, int(built_for)) == ("context", arch)
        assert node.attributes["partition_name"] == f"graph of {name}"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / WEIGHTS).write_bytes(bytes.fromhex(weights))
            self._known[name] = read_model(bytes.fromhex(raw), Path(folder))

    def _run(self, descriptor: int | None, number: int) -> None:
        model, inputs, outputs = self._bound[number]
        found = run_model(model, inputs)
        for name, array in outputs.items():
            array[:] = found[name]


def use_numpy_device(patch: pytest.MonkeyPatch) -> None:
    """Let the backend `qnn` run on this device, with Qualcomm's library or without."""
    ASKED.clear()
    patch.setattr(Context, "_start", NumpyDevice)
    here = replace(backend.QNN, versions={}, linux_only=False)
    patch.setattr(backend, "QNN", here)  # `devices`
    patch.setattr(Qnn, "package", here)
