"""What other settings would save: computed from a bundle, without compiling again.

In: a decoded program, the bytes of its files, a recipe and a dtype of caches. Out: the
bytes of file, states and process that would be saved by each recipe with smaller
weights or without PyTorch, and by each smaller dtype of caches. For `kvc compile BUNDLE
--what-if` also the bytes of file and memory, with the present settings and with the
new ones. Scratch is counted with the present settings. Weights are those of linear
layers, embeddings, experts and convolutions, in bytes of the recipe's format. Padding
between blobs is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from kvc.recipes import Recipe, known_recipes, load_recipe
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSetting
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.model import Program, State, StateKind
from kvc.schema.ops.convolution_channels import OVER_INT8, becomes_int8, channels_of
from kvc.schema.ops.products import QB4_BLOCK, QB4_ROWS
from kvc.schema.ops.row_blocks import weight_blocks
from kvc.schema.text import columns, plural, size
from kvc.schema.types import TensorType
from kvc.tools.reports.blobs import LOOKUPS, held_weights
from kvc.tools.reports.footprint import (
    TORCH_NBYTES,
    Footprint,
    needs_torch,
    state_nbytes,
)
from kvc.tools.reports.methods import takes_the_rest

_SCALE: Final = 4  # bytes of a float32, one for each int8 row
_BLOCK_SCALE: Final = 2  # of a bfloat16, one for each block of int4
_CACHES: Final = (StateKind.LINEAR, StateKind.RING, StateKind.APPEND)
_ROWS: Final = 3  # dimensions of the scales of an int8 cache: one less than a cache
CACHE_DTYPES: Final = ("float16", "int8")
_KERNELS: Final = "cpu"  # the backend that recipes of this and other backends end with
# Operator -> places of its weight, and of the scales and minimums of that.
_LINEAR: Final = {
    "aten::linear": (1, None),
    "kvc::linear_qd8": (3, 4),
    "kvc::linear_qb4": (3, 4),
    "kvc::linear_q8": (4, 5),
    "kvc::linear_q4": (4, 5, 7),
    "kvc::linear_w8": (1, 2),
}
_OTHERS: Final = {
    "aten::embedding": (0, None),
    "kvc::embedding_q8": (0, 1),
    "kvc::expert_linear": (1, None),
    "kvc::expert_linear_q8": (4, 5),
    "kvc::expert_linear_qd8": (3, 4),
}
_CONVOLUTIONS: Final = {
    **dict.fromkeys(OVER_INT8, (1, None)),
    **dict.fromkeys(OVER_INT8.values(), (1, 2)),
}
# Operator of floats -> dimensions of a weight that recipes of integers can store.
_FLOATS: Final = {"aten::linear": 2, "aten::embedding": 2, "kvc::expert_linear": 3}


@dataclass(frozen=True, slots=True)
class Saving:
    """The bytes that one setting would save.

    Attributes:
        setting: options of `kvc compile`.
        weights: bytes of weights that the file would save.
        pages: bytes that memory would save in pages of the file.
        packed: bytes that memory would save in packed copies of a backend's library.
        states: bytes of states that a session would save.
        process: bytes of PyTorch, if the bundle needs PyTorch now and would not need it
            with the setting.
    """

    setting: str
    weights: int = 0
    pages: int = 0
    packed: int = 0
    states: int = 0
    process: int = 0

    @property
    def memory(self) -> int:
        """Return the bytes of memory that the setting would save."""
        return self.pages + self.packed + self.states + self.process


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A weight matrix whose storage format a recipe chooses.

    Attributes:
        rows, columns: size of the matrix, or of all matrices of a stack of experts.
        nbytes: bytes that the numbers and scales take now.
        looked_up: whether an embedding reads the matrix.
        multiplied: whether a linear layer reads the matrix; int4 is for linear layers.
        convolved: whether a convolution reads the matrix.
        rounded: whether recipes with integers store the matrix as integers. They do if
            its shape in the file is [rows, columns], or, for a convolution, if
            `becomes_int8` tells so.
    """

    rows: int
    columns: int
    nbytes: tuple[int, int]
    looked_up: bool
    multiplied: bool
    convolved: bool
    rounded: bool


def describe_savings(
    program: Program, sizes: Mapping[str, int], tokens: int
) -> tuple[Saving, ...]:
    """Return what smaller weights and smaller caches would save, the most first.

    Args:
        program: the bundle's program.
        sizes: size of every symbol, for the bytes of states.
        tokens: number of tokens that a session holds in each row.
    """
    found = [
        *(
            recipe_saving(program, name, sizes, tokens)
            for name in _smaller_recipes(program)
        ),
        *(cache_saving(program, name, sizes, tokens) for name in CACHE_DTYPES),
    ]
    useful = [one for one in found if one.memory > 0 or one.weights > 0]
    return tuple(sorted(useful, key=lambda one: -one.memory))


def _smaller_recipes(program: Program) -> list[str]:
    """Return the recipes that store weights as fp32, bf16, q8 and q4.

    Each is that of the program's backend if there is one, or else of kvc's own kernels.
    """
    family = program.provenance.recipe.partition("_")[0]
    known = known_recipes()
    return [
        next(name for name in (f"{family}{end}", f"{_KERNELS}{end}") if name in known)
        for end in ("_fp32", "_bf16", "_q8", "_q4")
    ]


def recipe_saving(
    program: Program, name: str, sizes: Mapping[str, int], tokens: int
) -> Saving:
    """Return what another recipe would save; negative numbers if it takes more.

    Args:
        program: the bundle's program.
        name: name of a recipe that ships with kvc.
        sizes: size of every symbol.
        tokens: number of tokens that a session holds in each row.
    """
    recipe, held = load_recipe(name), held_weights(program, sizes, tokens)
    weights = pages = packed = 0
    for blob, matrix in _matrices(program).items():
        now, then = matrix.nbytes, _nbytes(matrix, recipe)
        weights += sum(now) - sum(then)
        if blob not in held:  # only the code of another recipe uses it
            continue
        pages += sum(map(held[blob].pages, now)) - sum(map(held[blob].pages, then))
        packed += sum(map(held[blob].own, now)) - sum(map(held[blob].own, then))
    torch_then = not recipe.backend or not takes_the_rest(program, _KERNELS)
    process = TORCH_NBYTES * (needs_torch(program) - torch_then)
    return Saving(f"--recipe {name}", weights, pages, packed, process=process)


def _nbytes(matrix: _Matrix, recipe: Recipe) -> tuple[int, int]:
    """Return the bytes of a matrix's numbers and of its scales in a recipe's format."""
    scheme = recipe.convolution if matrix.convolved else recipe.linear
    match scheme:
        case "qd8" | "w8" if matrix.rounded:
            return _int8(matrix, 1)
        case "qb4" if matrix.rounded:
            return _int4(matrix, 1)
        case "q8" if matrix.rounded:
            return _int8(matrix, weight_blocks(matrix.columns))
        case "q4" if matrix.rounded:
            return _int4(matrix, weight_blocks(matrix.columns))
    numbers = matrix.rows * matrix.columns
    narrow = recipe.weights == "bfloat16" and not matrix.convolved
    return numbers * (2 if narrow else 4), 0


def _int8(matrix: _Matrix, scales: int) -> tuple[int, int]:
    """Return the bytes of int8 numbers, and of `scales` scales for each row."""
    return matrix.rows * matrix.columns, matrix.rows * _SCALE * scales


def _int4(matrix: _Matrix, scales: int) -> tuple[int, int]:
    """Return the bytes in int4; in int8 with `scales` scales a row if int4 cannot."""
    fits = matrix.rows % QB4_ROWS == 0 and matrix.columns % QB4_BLOCK == 0
    if not matrix.multiplied or matrix.looked_up or not fits:
        return _int8(matrix, scales)
    numbers = matrix.rows * matrix.columns
    return numbers // 2, numbers // QB4_BLOCK * _BLOCK_SCALE


def _matrices(program: Program) -> dict[int, _Matrix]:
    """Map blobs to weights of linear layers, embeddings, experts and convolutions.

    Weights that only one of the bundle's recipes uses are included.
    """
    found: dict[int, _Matrix] = {}
    for body in program.bodies:
        for graph in (graph for method in body.methods for graph in method.graphs):
            for blob, matrix in _in_graph(program, graph):
                known = found.get(blob, matrix)
                found[blob] = _Matrix(
                    known.rows,
                    known.columns,
                    max(known.nbytes, matrix.nbytes, key=sum),
                    known.looked_up or matrix.looked_up,
                    known.multiplied or matrix.multiplied,
                    known.convolved or matrix.convolved,
                    known.rounded or matrix.rounded,
                )
    return found


def _in_graph(program: Program, graph: Graph) -> Iterator[tuple[int, _Matrix]]:
    for call in graph.instructions:
        op = call.op
        places = (_LINEAR | _OTHERS | _CONVOLUTIONS).get(op)
        if places is None:
            continue
        weight, *others = (
            None if place is None else _stored(program, graph, call.arguments[place])
            for place in places
        )
        if weight is None:
            continue
        blob, kind = weight
        scales = sum(program.blobs[one[0]].nbytes for one in others if one is not None)
        nbytes = program.blobs[blob].nbytes, scales
        rows, columns = _shape(op, kind)
        looked_up, multiplied = op in LOOKUPS, op in _LINEAR
        uses = looked_up, multiplied, op in _CONVOLUTIONS, _is_rounded(call, kind)
        yield blob, _Matrix(rows, columns, nbytes, *uses)


def _is_rounded(call: Instruction, kind: TensorType) -> bool:
    if call.op in OVER_INT8:
        return becomes_int8(call.op, call.arguments, kind.shape({}))
    return call.op not in _FLOATS or len(kind.dims) == _FLOATS[call.op]


def _stored(
    program: Program, graph: Graph, argument: object
) -> tuple[int, TensorType] | None:
    """Return the blob and type of an argument; None if the argument is computed."""
    if not isinstance(argument, Ref):
        return None
    value = graph.values[graph.root_of(argument.value)]
    if not isinstance(value.storage, Constant):
        return None
    return program.names[value.storage.name].blob, value.type


def _shape(op: str, kind: TensorType) -> tuple[int, int]:
    """Return the rows and columns of a matrix; of a stack, its total rows."""
    shape = kind.shape({})
    if op in _CONVOLUTIONS:
        return channels_of(op, shape)
    if op in ("kvc::linear_qb4", "kvc::linear_q4"):
        return shape[0] * QB4_ROWS, shape[1] * QB4_ROWS
    return prod(shape[:-1]), shape[-1]


def cache_saving(
    program: Program, dtype: str, sizes: Mapping[str, int], tokens: int
) -> Saving:
    """Return what another dtype of caches would save.

    Args:
        program: the bundle's program.
        dtype: one of `CACHE_DTYPES`.
        sizes: size of every symbol, for the bytes of states.
        tokens: number of tokens that a session holds in each row.
    """
    saved = 0
    for state in filter(_is_cache, program.states):
        now = state_nbytes(state, sizes, tokens)
        row = max(state.type.shape(sizes)[-1], 1)
        then = row * 2 if dtype == "float16" else row + _SCALE
        saved += now - now * then // (row * state.type.dtype.itemsize)
    return Saving(f"--cache-dtype {dtype}", states=saved)


def has_wide_caches(program: Program) -> bool:
    """Tell whether `--cache-dtype` could make any cache smaller than float32."""
    return any(map(_is_cache, program.states))


def _is_cache(state: State) -> bool:
    """Tell whether `--cache-dtype` applies to a state that is not int8 yet."""
    floats = state.type.dtype in (DType.FLOAT32, DType.FLOAT16)
    return state.kind in _CACHES and floats and len(state.type.dims) > _ROWS


def saving_lines(savings: Sequence[Saving]) -> list[str]:
    """Return the lines of what memory each setting would save."""
    less = [one for one in savings if one.memory > 0]
    rows = [(one.setting, f"{size(one.memory)} less") for one in less]
    return columns(rows, "<>") if rows else ["  nothing that a recipe changes"]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The size of a bundle with its present and with other settings.

    Attributes:
        file, file_then: bytes of the bundle and its data files, with the present and
            with the other settings.
        memory, memory_then: bytes of memory at the same sizes, with the present and
            with the other settings.
    """

    file: int
    file_then: int
    memory: Footprint
    memory_then: Footprint


def describe_what_if(
    program: Program, file: int, at: Footprint, recipe: str, cache: str
) -> WhatIf:
    """Return the file and memory sizes of a bundle with another recipe or cache dtype.

    Args:
        program: the bundle's program.
        file: bytes of the bundle and its data files.
        at: memory that the bundle takes now.
        recipe: name of a recipe that ships with kvc, "" for the present recipe.
        cache: one of `CACHE_DTYPES`, "" for the present dtypes.

    Raises:
        BadSetting: the recipe does not ship with kvc, or no cache can have the dtype.
    """
    _check_known("recipe", recipe, known_recipes())
    _check_known("cache", cache, CACHE_DTYPES if has_wide_caches(program) else ())

    def smaller(tokens: int) -> int:
        if not cache:
            return 0
        return cache_saving(program, cache, at.sizes, tokens).states

    saved = Saving("")
    if recipe:
        saved = recipe_saving(program, recipe, at.sizes, at.tokens)
    then = replace(
        at,
        weights=at.weights - saved.pages,
        packed=at.packed - saved.packed,
        states=at.states - smaller(at.tokens),
        token=at.token - (smaller(1) - smaller(0)),
        process=at.process - saved.process,
    )
    return WhatIf(file, file - saved.weights, at, then)


def _check_known(name: str, found: str, known: Sequence[str]) -> None:
    if found and found not in known:
        expected = (
            f"one of {', '.join(known)}"
            if known
            else "nothing: no cache of this bundle could be smaller"
        )
        raise BadSetting(name=f"--what-if {name}", expected=expected, found=found)


def what_if_lines(found: WhatIf) -> list[str]:
    """Return lines with the present and the other sizes side by side."""
    now, then = found.memory, found.memory_then
    parts = [
        ("file", found.file, found.file_then),
        ("memory", now.total, then.total),
        ("  weights", now.weights + now.packed, then.weights + then.packed),
        (f"  states with {plural(now.tokens, 'token')}", now.states, then.states),
        ("  scratch, as it is now", now.scratch, then.scratch),
        ("  inside partitions, as now", now.backends, then.backends),
        ("  the process, about", now.process, then.process),
        ("each token", now.token, then.token),
    ]
    rows = [(what, size(before), size(after)) for what, before, after in parts]
    return columns([("", "now", "then"), *rows], "<>>")
