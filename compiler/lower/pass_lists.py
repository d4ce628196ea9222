"""The passes of each recipe, in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvc.compiler.backends import Backend
from kvc.compiler.passes.base import Pass
from kvc.compiler.passes.cache_writes import AppendToCaches, RecognizeCacheWrites
from kvc.compiler.passes.convolution_pairs import PairConvolutions
from kvc.compiler.passes.convolutions import EndConvolutions, FoldBatchNorms
from kvc.compiler.passes.fusions import (
    FuseGlus,
    FuseRmsNorms,
    FuseRotaryEmbeddings,
)
from kvc.compiler.passes.hoist_views import LendWholeMemory
from kvc.compiler.passes.materialize_views import MaterializeViews
from kvc.compiler.passes.matrix_products import (
    DivideMatrices,
    GatherProducts,
    LinearProducts,
)
from kvc.compiler.passes.quantize_caches import NarrowCaches, QuantizeCaches
from kvc.compiler.passes.quantize_convolutions import QuantizeConvolutions
from kvc.compiler.passes.quantize_weights import QuantizeWeights
from kvc.compiler.passes.redundancies import (
    DedupeConstants,
    DropDeadCode,
    DropIdleWrites,
    ForwardCopies,
    ShareEqualNodes,
)
from kvc.compiler.passes.rotate_streams import RotateStreams
from kvc.compiler.passes.select_early import SelectEarly
from kvc.compiler.passes.sink_indices import SinkIndices
from kvc.compiler.passes.split_stacks import SplitStacks
from kvc.compiler.passes.store_bfloat16 import StoreBfloat16
from kvc.compiler.passes.write_through_views import WriteThroughViews
from kvc.compiler.weights.int4 import Moments
from kvc.recipes import Recipe

_FIRST: Final[tuple[Pass, ...]] = (
    SplitStacks(),
    ForwardCopies(),
    DropDeadCode(),
    DedupeConstants(),
    LendWholeMemory(),
    DropIdleWrites(),
    WriteThroughViews(),
    SinkIndices(),
    RecognizeCacheWrites(),
    AppendToCaches(),
    FuseRmsNorms(),
)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Data on the weights of an int4 recipe.

    Attributes:
        wide: names of weights that become int8 instead of int4.
        moments: name of a weight -> second moments of its layer's inputs; empty if
            there are no samples.
    """

    wide: frozenset[str] = frozenset()
    moments: Mapping[str, Moments] = field(default_factory=dict)


_NARROW: Final = Narrowing()


def passes_for(
    recipe: Recipe, backends: Sequence[Backend], narrowing: Narrowing = _NARROW
) -> tuple[Pass, ...]:
    """Return the passes of a recipe before lowering, in order.

    Args:
        recipe: the recipe.
        backends: the backends of the recipe.
        narrowing: the selection of the recipe's int4 and int8 weights.
    """
    passes = list(_FIRST)
    # Without a backend, results equal eager bit by bit (a product of one row rounds
    # differently), and calibration needs the ranges of all positions.
    if backends and not any(each.calibrated for each in backends):
        passes.append(SelectEarly())
    if recipe.cache == "int8":
        passes += [DropDeadCode(), QuantizeCaches()]
    elif recipe.cache == "float16":
        passes += [DropDeadCode(), NarrowCaches()]
    stored = recipe.linear != "float32" or recipe.weights != "float32"
    own = backends[:1]  # the backend that the recipe is named for comes first
    if stored or _fuses(own):
        passes.append(LinearProducts())
    if stored:
        passes.append(DivideMatrices())
    passes += [*_weight_passes(recipe, narrowing), ShareEqualNodes()]
    if _fuses(backends):
        passes += [FuseRotaryEmbeddings(), DropDeadCode()]
    if _fuses(own):
        passes += [FuseGlus(), GatherProducts(), FoldBatchNorms(), EndConvolutions()]
        passes += [DropDeadCode(), PairConvolutions()]
    if recipe.convolution == "w8":
        passes += [DropDeadCode(), QuantizeConvolutions(recipe.keep)]
    passes += [MaterializeViews(), DropDeadCode()]
    return tuple(passes)


def observing_passes(recipe: Recipe) -> tuple[Pass, ...]:
    """Return the passes that expose the linear layers that a recipe quantizes.

    These passes leave weights in float32. They also leave all positions to be computed,
    even if only the logits of the last token are read: otherwise the last layers would
    be observed with few tokens.
    """
    linear: list[Pass] = [LinearProducts(), DivideMatrices()]
    linear += _rotating(recipe)
    return (*_FIRST, *linear, ShareEqualNodes(), MaterializeViews(), DropDeadCode())


def _weight_passes(recipe: Recipe, narrowing: Narrowing) -> Iterator[Pass]:
    """Yield the passes that change the format in which matrices are stored."""
    yield from _rotating(recipe)
    embedding, keep = recipe.embedding == "int8", recipe.keep
    quantized = {recipe.linear, recipe.convolution} != {"float32"}
    if quantized or embedding:  # also refuses what `keep` matches nothing with
        wide, moments = narrowing.wide, narrowing.moments
        yield QuantizeWeights(recipe.linear, embedding, keep, wide, moments)
    if recipe.weights == "bfloat16":
        yield StoreBfloat16(keep)


def _rotating(recipe: Recipe) -> tuple[Pass, ...]:
    return (DropDeadCode(), RotateStreams()) if recipe.basis == "rotated" else ()


def _fuses(backends: Sequence[Backend]) -> bool:
    """Tell whether a backend runs fused operators."""
    return any(backend.fuses for backend in backends)
