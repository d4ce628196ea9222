"""Ways to run the methods in the tests of states: backends of these tests, and recipes.

With a backend, the model is compiled by the recipe fp32, and the backend takes
partitions of the result. With a recipe, the model is compiled by that recipe, as a user
would do it; with cpu_fp32 its methods run from bound lists, as `kvc compile` stores
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from float16_results import allow_for, with_every_size
from greedy_backends import ByReference, Greedy, Partitions
from lowered_device import Lowered, LoweredDelegate
from opaque_backend import Opaque, OpaqueDelegate

from kvc.compiler import Bundle, pipeline
from kvc.compiler.backends import Backend, Partition
from kvc.compiler.backends.mlx import Mlx
from kvc.compiler.emit.bundle import SaveReport
from kvc.compiler.lower.lowering import Lowering, Parts
from kvc.recipes import Recipe, Wanted, load_recipe, load_recipes
from kvc.runtime.bound_lists import bind_program
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.calibration import Range
from kvc.schema.dtypes import DType
from kvc.schema.model import Program
from kvc.tools.reports.methods import describe_methods

BACKENDS = {
    "greedy": (Greedy, ByReference),
    "partitions": (Partitions, ByReference),
    "opaque": (Opaque, OpaqueDelegate),
    "lowered": (Lowered, LoweredDelegate),
}
RECIPES = (
    *("cpu_fp32", "xnnpack_fp32", "vulkan_fp32"),
    *("qnn_fp16", "qnn_a16w8", "coreai_fp32", "coreai_fp16", "coreml_fp16"),
)
FIXED = RECIPES[3:]  # shapes
LISTED = RECIPES[0]  # runs from bound lists
# Their order chooses which tests run daily in which way.
WAYS = ("greedy", "partitions", "opaque", *RECIPES, "mlx", "lowered")
# What the backend `cpu` leaves to torch, by why: control flow needs to know where it
# writes; an array gets longer that is no state's.
# Random functions take ops that it has not.
LEFT = {
    "kvc::after": "a loop writes from there on",
    "kvc::append": "a caller's array",
    "kvc::replace": "a state that a method begins anew",
    "aten::flip": "it has no kernel of it",
    "aten::fmod.Scalar": "it has no kernel of it",
    "aten::remainder.Scalar": "it has no kernel of it",
}
# Of the largest number that is compared: in float16 a few layers make 5e-3 of 5e-4, the
# rounding of one number; int8 weights make more. A wrong slot of a cache makes more
# than 1e-1.
SLACK = {"qnn_fp16": 1e-2, "coreai_fp16": 1e-2, "coreml_fp16": 1e-2, "qnn_a16w8": 4e-2}
MANY = 20  # the ways but the plain one try one of so many random cases
REACH = 64.0  # of all values, where no samples tell
_partitions = Lowering.partitions


def examples(number: int, backend: str) -> int:
    """Return how many of `number` random cases a test tries with a backend or recipe.

    All are tried with "", the plain way.
    """
    return number // MANY if backend else number


def _wide_partitions(*arguments: object) -> Parts:
    """Return partitions with one wide range for all values, as if calibrated."""
    return {
        backend: {name: [_wide(one) for one in some] for name, some in by_name.items()}
        for backend, by_name in _partitions(*arguments).items()
    }


def _wide(partition: Partition) -> Partition:
    graph, found = partition.graph, Range(-REACH, REACH)
    values = [*graph.inputs, *(value for value, _ in graph.constants)]
    made = [value for node in graph.nodes for value in node.outputs]
    floats = [v.id for v in (*values, *made) if v.type.dtype is DType.FLOAT32]
    attending = [node for node in graph.nodes if "attention" in node.op]
    scores = [value.id for node in attending for value in node.outputs]
    ranges, scored = (dict.fromkeys(some, found) for some in (floats, scores))
    return replace(partition, ranges=ranges, scores=scored)


_found, _emit = pipeline._backends_of, pipeline.emit_program


@contextmanager
def compiling_with(name: str) -> Iterator[None]:
    """Compile by another way within a `with` block.

    A backend (one of `BACKENDS`, or `mlx`) is added to recipes that have none. A recipe
    (one of `RECIPES`) takes the place of fp32, with caches in the dtype that fp32 has.
    "" changes nothing.
    """
    with pytest.MonkeyPatch.context() as patch:

        def other_recipes(given: Wanted) -> tuple[Recipe, ...]:
            return tuple(map(other_recipe, load_recipes(given)))

        def other_recipe(own: Recipe) -> Recipe:
            return load_recipe(name, own.cache) if own.name == "fp32" else own

        def other_backends(recipe: Recipe) -> tuple[Backend, ...]:
            own = Mlx if name == "mlx" else BACKENDS[name][0]
            return _found(recipe) or (own({}),)

        patch.setattr(Bundle, "save", _save_listed if name == LISTED else _save)
        if name in RECIPES:
            patch.setattr(pipeline, "load_recipes", other_recipes)
            patch.setattr(pipeline, "emit_program", _emit_natively)
            if name in SLACK:
                # Of a cache, Core AI's writes what it has computed with.
                allow_for(patch, SLACK[name], rounded_caches=name == "coreai_fp16")
            if name == "qnn_a16w8":
                patch.setattr(pipeline, "check_calibration", lambda *_: None)
                patch.setattr(Lowering, "partitions", _wide_partitions)
        elif name:
            patch.setattr(pipeline, "_backends_of", other_backends)
        if name in (*FIXED, "lowered"):
            patch.setattr(pipeline, "with_buckets", with_every_size)
        for other, (_, delegate) in BACKENDS.items():
            patch.setitem(DELEGATES, other, delegate)
        yield


_save = Bundle.save


def _save_listed(bundle: Bundle, *arguments: object, **named: object) -> SaveReport:
    """Save a bundle with the bound lists of those methods that can have them."""
    bounds, _ = bind_program(bundle.program)
    return _save(bundle.with_bounds(bounds), *arguments, **named)


def _emit_natively(*arguments: object, **named: object) -> Program:
    """Emit a program, and check that its backend takes all ops but those in `LEFT`."""
    program = _emit(*arguments, **named)
    if program.provenance.recipe in RECIPES:
        for method in describe_methods(program):
            assert set(method.left) <= set(LEFT), f"{method.name} leaves {method.left}"
    return program
