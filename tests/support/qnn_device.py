"""A device of the backend `qnn` that is numpy: everything but Qualcomm's library.

It takes the requests of `runtime_py/delegates/qnn/worker.py` in this process, reads the
files that the library would read, and runs models in float16 or on integers. `ASKED` is
what it was asked to do.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx_models import Model, read_model, run_model

from kvc.runtime.delegates.qnn import backend, context
from kvc.runtime.delegates.subprocess_calls import WEIGHTS

ASKED: list[str] = []
Place = tuple[str, int, int, tuple[int, ...]]
_KINDS = {4: np.uint16, 5: np.int16, 10: np.float16}


class NumpyDevice:
    """Takes the place of `Process`."""

    def __init__(self, *_: object) -> None:
        self._held = tempfile.TemporaryDirectory()
        self.folder, self.is_lost = Path(self._held.name), False
        self._models: dict[str, Model] = {}
        self._bound: dict[int, tuple[Model, mmap.mmap, list[Place], list[Place]]] = {}

    def ask(
        self, do: str, limit_s: float, descriptor: int | None = None, **facts: object
    ) -> object:
        assert limit_s > 0
        ASKED.append(do)
        return getattr(self, f"_{do}")(descriptor, **facts)

    def _build(self, descriptor: int | None, name: str, model: str, arch: int) -> None:
        raw = (self.folder / model).read_bytes()
        self._models[name] = read_model(raw, self.folder)

    def _store(self, descriptor: int | None, name: str, model: str, arch: int) -> str:
        raw = (self.folder / model).read_bytes()
        read_model(raw, self.folder)
        weights = (self.folder / WEIGHTS).read_bytes()
        made = [
            b"context",
            str(arch).encode(),
            raw.hex().encode(),
            weights.hex().encode(),
        ]
        (self.folder / f"{name}_qnn.bin").write_bytes(b" ".join(made))
        return f"graph of {name}"

    def _load(self, descriptor: int | None, name: str, model: str, arch: int) -> None:
        (node,) = read_model((self.folder / model).read_bytes()).nodes
        assert (node.op, node.domain) == ("EPContext", "com.microsoft")
        content = (self.folder / str(node.attributes["ep_cache_context"])).read_bytes()
        magic, built_for, raw, weights = content.split(b" ")
        assert (magic, int(built_for)) == (b"context", arch)
        assert node.attributes["partition_name"] == f"graph of {name}"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / WEIGHTS).write_bytes(bytes.fromhex(weights.decode()))
            self._models[name] = read_model(bytes.fromhex(raw.decode()), Path(folder))

    def _bind(
        self,
        descriptor: int,
        name: str,
        number: int,
        nbytes: int,
        inputs: list[Place],
        outputs: list[Place],
    ) -> None:
        held = mmap.mmap(os.dup(descriptor), nbytes)
        self._bound[number] = self._models[name], held, inputs, outputs

    def _run(self, descriptor: int | None, number: int) -> None:
        model, held, inputs, outputs = self._bound[number]
        found = run_model(model, _arrays(held, inputs))
        for name, array in _arrays(held, outputs).items():
            array[:] = found[name]

    def _forget(self, descriptor: int | None, number: int) -> None:
        del self._bound[number]

    def close(self) -> None:
        self.is_lost = True
        self._held.cleanup()


def _arrays(held: mmap.mmap, places: list[Place]) -> Mapping[str, np.ndarray]:
    return {n: np.ndarray(size, _KINDS[k], held, at) for n, k, at, size in places}


def use_numpy_device(patch: pytest.MonkeyPatch) -> None:
    """Let the backend have this device, whether the library is here or not."""
    ASKED.clear()
    patch.setattr(context, "Process", NumpyDevice)
    patch.setattr(backend, "check_installed", lambda: None)
