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
    kinds: ClassVar[Mapping[int, type] | None] = None  # dtypes by numbers

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

    def _bind(self, descriptor, name, number, nbytes, **places: list[tuple]) -> None:
        """Map the memory of a descriptor, and bind arrays in it to a built model.

        `places` lists arrays as (name, dtype, offset, shape).
        """
        held = mmap.mmap(os.dup(descriptor), nbytes)
        if self.kinds is not None:
            places = {
                key: [(n, self.kinds[kind], *rest) for n, kind, *rest in some]
                for key, some in places.items()
            }
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
