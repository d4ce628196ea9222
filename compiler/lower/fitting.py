"""Choose which weights become int8 where a recipe makes int4, under a number of bytes.

In: a program whose weights are int4, and where their bytes come from. Out: the names of
the weights that gain the most for their bytes: how much smaller the squared error of a
layer's results becomes, as a share of the results themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.passes.quantize_weights import NARROW
from kvc.compiler.weights.constants import WeightReader
from kvc.compiler.weights.int4 import quantize_int4, widened
from kvc.compiler.weights.moments import Factors
from kvc.compiler.weights.sources import INT4, SCALE, Derived, Source, Transform
from kvc.recipes import Recipe
from kvc.schema import model
from kvc.schema.container import align_up, default_align
from kvc.schema.errors import CompileError, FitUnused, listing
from kvc.schema.ops.row_blocks import weight_blocks

_SIGNED: Final = Transform.INT4_SIGNED
_SCALE: Final = 4  # bytes of a float32, one for each block of int8


def check_fit(recipes: Sequence[Recipe], fit: object) -> None:
    """Check that a number of bytes is given only where something can be chosen.

    Raises:
        CompileError: it is no number of bytes.
        FitUnused: it is given to a recipe without int4, or to several recipes.
    """
    if fit is None:
        return
    if not isinstance(fit, int) or isinstance(fit, bool) or fit < 1:
        message = f"fit: expected an int of bytes, 1 or more, found {fit!r}"
        raise CompileError(message=message)
    if len(recipes) != 1 or recipes[0].linear not in NARROW:
        raise FitUnused(recipes=listing([one.name for one in recipes]))


@dataclass(frozen=True, slots=True)
class Gain:
    """What int8 does for a weight.

    Attributes:
        name: of the weight in the model.
        sizes: what its values and scales take, in the place of those of int4, by the
            names of these.
        nbytes: that it takes more.
        error: that int4 makes: the squared error of its layer's results, as a share of
            their squares.
    """

    name: str
    sizes: Mapping[str, int]
    nbytes: int
    error: float


def gains(program: model.Program, sources: Mapping[str, Source]) -> list[Gain]:
    """Return what int8 does for each int4 weight, the most for a byte first.

    Args:
        program: whose weights are int4.
        sources: of its names.

    Raises:
        NotFinite: a weight has a NaN or an infinity.
    """
    factors, taken = Factors(), _sizes(program)
    found = [
        _gain(name, source, factors, taken)
        for name, source in sources.items()
        if isinstance(source, Derived) and source.transform in INT4
    ]
    return sorted(found, key=lambda one: (-one.error / one.nbytes, one.name))


def _gain(
    stored: str, source: Derived, factors: Factors, taken: Mapping[str, int]
) -> Gain:
    name = stored.removesuffix(f".{source.transform.value}")
    reader, signed = WeightReader({source.base: name}), source.transform is _SIGNED
    moments = factor = None
    if source.moments is not None:
        moments = torch.from_numpy(source.moments.sums)
        factor = factors.of(source.moments)
    wrong = whole = 0.0
    rows = columns = 0
    for block in reader.rows_to_quantize(source):
        weight = block.float()
        error = widened(*quantize_int4(weight, signed, factor)).sub_(weight)
        wrong += _square(error, moments)
        whole += _square(weight, moments)
        rows, columns = rows + len(weight), weight.shape[1]
    scales = _SCALE * rows * weight_blocks(columns)
    sizes = {stored: rows * columns, f"{stored}{SCALE}": scales}
    more = sum(sizes.values()) - sum(taken[each] for each in sizes)
    return Gain(name, sizes, more, wrong / whole if whole else 0.0)


def _square(weight: Tensor, moments: Tensor | None) -> float:
    """Return the sum of squares of what a matrix makes of its inputs.

    `moments` are those of the inputs; without any, of the matrix itself.
    """
    reached = weight if moments is None else weight @ moments
    return float((reached * weight).sum(dtype=torch.float64))


def chosen(
    ordered: Sequence[Gain], program: model.Program, room: int
) -> frozenset[str]:
    """Return the names of weights that int8 takes at most `room` bytes more for.

    Args:
        ordered: what int8 does, the most for a byte first.
        program: in which all of them are int4.
        room: bytes, gaps between blobs among them.
    """
    sizes = _sizes(program)
    names, before = set[str](), _end(sizes)
    for one in ordered:
        wider = {**sizes, **one.sizes}
        if _end(wider) - before <= room:
            names.add(one.name)
            sizes = wider
    return frozenset(names)


def _sizes(program: model.Program) -> dict[str, int]:
    """Return what each name takes, in the order of the file."""
    return {named.name: named.type.nbytes({}) for named in program.names}


def _end(sizes: Mapping[str, int]) -> int:
    """Return where blobs of some sizes end that lie one after another in a file."""
    end = 0
    for nbytes in sizes.values():
        end = align_up(end, default_align(nbytes)) + nbytes
    return end
