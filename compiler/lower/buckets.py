"""Restrict the sizes of a program to the buckets of a recipe.

In: a program with symbols, a recipe, the partitions of a backend. Out: the program, in
which each symbol lists the sizes that it can have; or an error that names the size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from kvc.compiler.ir import Method, Program, Value
from kvc.recipes import Recipe
from kvc.schema.buckets import fixed_sizes
from kvc.schema.errors import BadBuckets, listing, meant
from kvc.schema.types import Symbol, symbols_in

# A size with a larger upper bound is taken to be unbounded.
MAX_LARGEST: Final = 1 << 20


def with_buckets(program: Program, recipe: Recipe) -> Program:
    """Restrict the symbols of a program to the sizes that a recipe lists.

    Raises:
        BadBuckets: the program has no size of a listed name, or a bucket is outside of
            the bounds of the size.
    """
    known = {symbol.name: symbol for symbol in program.symbols}
    for name in recipe.buckets:
        if name not in known:
            there = listing(tuple(known)) if known else "none"
            what = f"the model has no such size{meant(name, known)}; it has: {there}"
            raise BadBuckets(recipe=recipe.name, size=name, what=what)
    return replace(
        program,
        symbols=tuple(_with_sizes(symbol, recipe) for symbol in program.symbols),
    )


def _with_sizes(symbol: Symbol, recipe: Recipe) -> Symbol:
    largest = recipe.sizes == "largest" and symbol.upper <= MAX_LARGEST
    usual = (symbol.upper,) if largest else ()
    sizes = recipe.buckets.get(symbol.name, usual)
    if sizes and not symbol.lower <= sizes[0] <= sizes[-1] <= symbol.upper:
        what = f"{list(sizes)} are not all within {symbol.lower}..{symbol.upper}"
        raise BadBuckets(recipe=recipe.name, size=symbol.name, what=what)
    return replace(symbol, sizes=sizes)


def check_fixed(
    backend: str, graphs: Iterable[Method], symbols: Sequence[Symbol], recipe: Recipe
) -> None:
    """Check that a recipe lists every size in the partitions of a fixed-shape backend.

    Raises:
        BadBuckets: a size has no listed values, or a listed value of a size makes a
            tensor without elements, which fixed-shape backends do not support.
    """
    types = {value.type for graph in graphs for value in values_of(graph)}
    used = symbols_in(types)
    for symbol in symbols:
        if symbol.name in used and not symbol.sizes:
            raise BadBuckets(
                recipe=recipe.name,
                size=symbol.name,
                what=f"the backend {backend} takes fixed shapes; list the sizes of "
                f"{symbol.lower}..{symbol.upper} that it is to be made for",
            )
    for kind in sorted(types, key=str):
        for sizes in fixed_sizes(symbols, [kind]) or ():
            shape = kind.shape(sizes)
            if sizes and 0 in shape:
                at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
                what = (
                    f"the backend {backend} has no tensors without elements, and at "
                    f"{at} {kind} has the shape {list(shape)}; leave out "
                    "such sizes"
                )
                raise BadBuckets(recipe=recipe.name, size=", ".join(sizes), what=what)


def values_of(graph: Method) -> tuple[Value, ...]:
    """Return all values of a graph."""
    made = (value for node in graph.nodes for value in node.outputs)
    return (*graph.inputs, *graph.bound, *made)
