"""Select the weights that become int8 in an int4 recipe, within a number of bytes.

In: a program whose weights are int4, and the sources of its constants. Out: the names
of the weights with the largest gain per byte. The gain of a weight is the decrease of
the squared error of its layer's results, as a share of the squared results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.passes.quantize_weights import NARROW
from kvc.compiler.weights.int4 import Factors, quantize_int4, widened
from kvc.compiler.weights.sources import INT4, SCALE, Derived, Source, Transform
from kvc.compiler.weights.weight_reader import WeightReader
from kvc.recipes import Recipe
from kvc.schema import model
from kvc.schema.container import align_up, default_align
from kvc.schema.errors import CompileError, FitUnused, listing
from kvc.schema.ops.row_blocks import weight_blocks

_SIGNED: Final = Transform.INT4_SIGNED
_SCALE: Final = 4  # bytes of a float32, one for each block of int8


def check_fit(recipes: Sequence[Recipe], fit: object) -> None:
    """Check that a byte limit is given only for one recipe with int4 weights.

    Raises:
        CompileError: the limit is no number of bytes.
        FitUnused: the recipe has no int4 weights, or there are several recipes.
    """
    if fit is None:
        return
    if not isinstance(fit, int) or isinstance(fit, bool) or fit < 1:
        raise CompileError(
            message=f"fit: expected an int of bytes, 1 or more, found {fit!r}"
        )
    if len(recipes) != 1 or recipes[0].linear not in NARROW:
        raise FitUnused(recipes=listing([one.name for one in recipes]))


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain and the cost of storing a weight as int8 instead of int4.

    Attributes:
        name: the name of the weight in the model.
        sizes: bytes of the weight's int8 values and of its int8 scales. The keys are
            the names under which the int4 values and the int4 scales are stored.
        nbytes: number of bytes by which the int8 form is larger than the int4 form.
        error: the squared error of the layer's results with int4, as a share of the
            squared results.
    """

    name: str
    sizes: Mapping[str, int]
    nbytes: int
    error: float


def gains(program: model.Program, sources: Mapping[str, Source]) -> list[Gain]:
    """Return the gain of int8 for each int4 weight, the largest gain per byte first.

    Args:
        program: a program whose weights are int4.
        sources: the sources of the program's constants, by name.

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
    """Return the expected sum of squares of the results of a matrix.

    `moments` are the second moments of the matrix's inputs. If they are None, return
    the sum of squares of the matrix itself.
    """
    reached = weight if moments is None else weight @ moments
    return float((reached * weight).sum(dtype=torch.float64))


def chosen(
    ordered: Sequence[Gain], program: model.Program, room: int
) -> frozenset[str]:
    """Return the names of the weights to store as int8 with at most `room` more bytes.

    Args:
        ordered: the gains of the weights, the largest gain per byte first.
        program: the program in which all of these weights are int4.
        room: the bytes that the file can grow by, including gaps between blobs.
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
    """Return name of a constant -> bytes, in the order of the constants in the file."""
    return {named.name: named.type.nbytes({}) for named in program.names}


def _end(sizes: Mapping[str, int]) -> int:
    """Return the end offset in a file of consecutive blobs with the given sizes."""
    end = 0
    for nbytes in sizes.values():
        end = align_up(end, default_align(nbytes)) + nbytes
    return end
