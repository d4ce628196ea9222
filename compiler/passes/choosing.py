"""Which passes a recipe takes, and in which order."""

from collections.abc import Iterator, Sequence

from kvc.compiler.backends import Backend
from kvc.compiler.passes.append_to_caches import AppendToCaches
from kvc.compiler.passes.base import Pass
from kvc.compiler.passes.dedupe_constants import DedupeConstants
from kvc.compiler.passes.divide_matrices import DivideMatrices
from kvc.compiler.passes.drop_dead_code import DropDeadCode
from kvc.compiler.passes.drop_idle_writes import DropIdleWrites
from kvc.compiler.passes.forward_copies import ForwardCopies
from kvc.compiler.passes.fuse_glus import FuseGlus
from kvc.compiler.passes.fuse_rms_norms import FuseRmsNorms
from kvc.compiler.passes.fuse_rotary_embeddings import FuseRotaryEmbeddings
from kvc.compiler.passes.gather_products import GatherProducts
from kvc.compiler.passes.lend_whole_memory import LendWholeMemory
from kvc.compiler.passes.linear_products import LinearProducts
from kvc.compiler.passes.materialize_views import MaterializeViews
from kvc.compiler.passes.narrow_caches import NarrowCaches
from kvc.compiler.passes.quantize_caches import QuantizeCaches
from kvc.compiler.passes.quantize_weights import QuantizeWeights
from kvc.compiler.passes.recognize_cache_writes import RecognizeCacheWrites
from kvc.compiler.passes.rotate_streams import RotateStreams
from kvc.compiler.passes.select_early import SelectEarly
from kvc.compiler.passes.share_equal_nodes import ShareEqualNodes
from kvc.compiler.passes.sink_indices import SinkIndices
from kvc.compiler.passes.split_stacks import SplitStacks
from kvc.compiler.passes.store_bfloat16 import StoreBfloat16
from kvc.compiler.passes.write_through_views import WriteThroughViews
from kvc.recipes import Recipe


def passes_for(recipe: Recipe, backends: Sequence[Backend]) -> tuple[Pass, ...]:
    """Return the passes of a recipe before lowering, in order.

    Args:
        recipe: of the bundle.
        backends: those of the recipe.
    """
    passes: list[Pass] = [SplitStacks(), ForwardCopies(), DropDeadCode()]
    passes.append(DedupeConstants())
    passes += [LendWholeMemory(), DropIdleWrites(), WriteThroughViews(), SinkIndices()]
    passes += [RecognizeCacheWrites(), AppendToCaches(), FuseRmsNorms()]
    if _selects_early(backends):
        passes.append(SelectEarly())
    if recipe.cache == "int8":
        passes += [DropDeadCode(), QuantizeCaches()]
    elif recipe.cache == "float16":
        passes += [DropDeadCode(), NarrowCaches()]
    stored = recipe.linear != "float32" or recipe.weights != "float32"
    if stored or recipe.backend == "cpu":
        passes.append(LinearProducts())
    if stored:
        passes.append(DivideMatrices())
    passes += [*_weight_passes(recipe), ShareEqualNodes()]
    if "cpu" in (recipe.backend, recipe.rest):
        passes += [FuseRotaryEmbeddings(), DropDeadCode()]
    if recipe.backend == "cpu":
        passes += [FuseGlus(), GatherProducts()]
    passes += [MaterializeViews(), DropDeadCode()]
    return tuple(passes)


def _weight_passes(recipe: Recipe) -> Iterator[Pass]:
    """Yield the passes that store matrices in another form."""
    if recipe.basis == "rotated":
        yield DropDeadCode()
        yield RotateStreams()
    embedding = recipe.embedding == "int8"
    if recipe.linear != "float32" or embedding:
        yield QuantizeWeights(recipe.linear, embedding, recipe.keep)
    if recipe.weights == "bfloat16":
        yield StoreBfloat16(recipe.keep)


def _selects_early(backends: Sequence[Backend]) -> bool:
    """Tell whether places that nothing reads are left out.

    Without a backend results have the bits of eager, whose products of one row are
    rounded otherwise; and ranges are found over all places.
    """
    return bool(backends) and not any(each.calibrated for each in backends)
