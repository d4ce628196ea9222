"""Solve the sizes of a call's symbols from the shapes of its inputs.

In: declared types, the shapes found, the sizes that a session fixed. Out: a size for
every symbol, checked against its bounds and against every input's declared dims.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.schema.errors import InputMismatch
from kvc.schema.frozen import frozen
from kvc.schema.types import Symbol, TensorType, settle_symbol, symbols_of

Shape = tuple[int, ...]


@frozen
class Signature:
    """What the inputs of a call must be.

    Attributes:
        method: its name, for messages.
        names, types, dtypes: one for each input.
        symbols: by name.
    """

    method: str
    names: Sequence[str]
    types: Sequence[TensorType]
    dtypes: Sequence["np.dtype[np.generic]"]
    symbols: Mapping[str, Symbol]

    def solve(
        self, shapes: Sequence[Shape], fixed: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the size of each symbol of a call.

        Args:
            shapes: as found, one for each input.
            fixed: sizes that are settled before the call.

        Raises:
            InputMismatch: a rank, a bound, or two dims that disagree.
        """
        sizes = dict(fixed)
        for index, shape in enumerate(shapes):
            if len(shape) != len(self.types[index].dims):
                raise self._mismatch(index, shape, "")
            for dim, size in zip(self.types[index].dims, shape, strict=True):
                settle_symbol(dim, size, sizes)
        for index, shape in enumerate(shapes):
            self._check(index, shape, sizes)
        return sizes

    def describe(self, index: int) -> str:
        """Return an input's type as text, with the bounds of its symbols."""
        declared = self.types[index]
        bounds = [self.symbols[name] for name in symbols_of(declared.dims)]
        limits = ", ".join(f"{s.name} in {s.lower}..{s.upper}" for s in bounds)
        return f"{declared} with {limits}" if limits else str(declared)

    def _check(self, index: int, shape: Shape, sizes: Mapping[str, int]) -> None:
        declared = self.types[index]
        used = symbols_of(declared.dims)
        for name in used:
            if name not in sizes:
                raise self._mismatch(index, shape, f" (nothing settles {name})")
            if not self.symbols[name].lower <= sizes[name] <= self.symbols[name].upper:
                raise self._mismatch(index, shape, "")
        if declared.shape(sizes) != shape:
            settled = ", ".join(f"{name} = {sizes[name]}" for name in used)
            raise self._mismatch(index, shape, f" (here {settled})" if settled else "")

    def _mismatch(self, index: int, shape: Shape, note: str) -> InputMismatch:
        return InputMismatch(
            method=self.method,
            input=self.names[index],
            expected=self.describe(index) + note,
            found=str(TensorType(self.types[index].dtype, shape)),
        )
