"""A stand-in for a worker process that answers in this process.

The fake devices of several libraries share it. A device has a method for each request
that its worker takes: `_build`, `_store`...
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np


class NumpyProcess:
    """Takes the place of `Process`.

    `asked` lists the requests that all objects of a class have got.
    """

    asked: ClassVar[list[str]]

    def __init__(self, *_: object) -> None:
        self._held = tempfile.TemporaryDirectory()
        self.folder, self.is_lost = Path(self._held.name), False
        self._known: dict[str, object] = {}  # what is built, by name
        self._bound: dict[int, tuple[object, ...]] = {}

    def ask(
        self, do: str, limit_s: float, descriptor: int | None = None, **facts: object
    ) -> object:
        assert limit_s > 0
        self.asked.append(do)
        return getattr(self, f"_{do}")(descriptor, **facts)

    def _bind(
        self,
        descriptor: int,
        name: str,
        number: int,
        nbytes: int,
        places: Mapping[str, list[tuple]],
    ) -> None:
        """Map the memory of a descriptor, and bind arrays in it to a built model.

        `places` lists arrays as (name, dtype, offset, shape).
        """
        held = mmap.mmap(os.dup(descriptor), nbytes)
        arrays = (
            {n: np.ndarray(shape, dtype, held, at) for n, dtype, at, shape in some}
            for some in places.values()
        )
        self._bound[number] = (self._known[name], *arrays)

    def _forget(self, descriptor: int | None, number: int) -> None:
        del self._bound[number]

    def end(self) -> None:
        self.close()

    def close(self) -> None:
        self.is_lost = True
        self._held.cleanup()
