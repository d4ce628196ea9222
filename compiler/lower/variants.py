"""Merge the programs that several recipes made of a model.

In: the programs, made by recipes that compute the same numbers, and the sources of
their constants. Out: the first program, with the other programs as its variants. All
programs refer to one list of names, so that equal constants are stored once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvc.compiler.weights.sources import Source
from kvc.schema.errors import RecipesApart, listing
from kvc.schema.graph import Constant, Graph, Value
from kvc.schema.model import Method, NamedData, Program, Variant
from kvc.schema.verify.variants import signature_of


@dataclass(frozen=True, slots=True)
class Emitted:
    """The program that a recipe made of a model.

    Attributes:
        program: the program, without variants.
        sources: the sources of the program's constants, by name.
    """

    program: Program
    sources: Mapping[str, Source]


def together(emitted: Sequence[Emitted]) -> Emitted:
    """Return the program of the first recipe, with the other programs as variants.

    Raises:
        RecipesApart: the programs have different states, sizes or signatures, or a
            recipe's backend runs no node.
    """
    if len(emitted) == 1:
        return emitted[0]
    recipes = [one.program.provenance.recipe for one in emitted]
    names = {named.name: named for one in emitted for named in one.program.names}
    sources: dict[str, Source] = {}
    for one in emitted:
        for name, source in one.sources.items():
            if sources.setdefault(name, source) != source:
                raise _differ(recipes, f"the constant {name} is not the same")
    ids = {name: number for number, name in enumerate(names)}
    moved = [_moved(one.program, ids, tuple(names.values())) for one in emitted]
    for recipe, other in zip(recipes, moved, strict=True):
        if not other.delegates:
            raise _differ(
                recipes, f"the backend of {recipe} takes nothing of this model"
            )
        _check_same(moved[0], other, recipes)
    first_backends = [one.backends[0] for one in moved]
    if len(set(first_backends)) < len(moved):
        raise _differ(
            recipes, f"the first backends that run this model are {first_backends}"
        )
    variants = tuple(_variant(one) for one in moved[1:])
    return Emitted(replace(moved[0], variants=variants), sources)


def _check_same(first: Program, other: Program, recipes: Sequence[str]) -> None:
    """Check that two programs have equal states, cursors, sizes and signatures.

    Raises:
        RecipesApart: one of these differs.
    """
    for what in ("states", "cursors"):
        if getattr(first, what) != getattr(other, what):
            raise _differ(recipes, f"the {what} of the model differ between them")
    if _bounds(first) != _bounds(other):
        raise _differ(recipes, "the sizes of the model differ between them")
    for one, two in zip(first.methods, other.methods, strict=True):
        if signature_of(one) != signature_of(two):
            raise _differ(
                recipes, f"the signatures of method {one.name} differ between them"
            )


def _bounds(program: Program) -> list[tuple[str, int, int]]:
    return [(one.name, one.lower, one.upper) for one in program.symbols]


def _differ(recipes: Sequence[str], what: str) -> RecipesApart:
    return RecipesApart(recipes=listing(recipes), what=what)


def _variant(program: Program) -> Variant:
    origin = program.provenance
    return Variant(
        recipe=origin.recipe,
        recipe_text=origin.recipe_text,
        methods=program.methods,
        delegates=program.delegates,
        symbols=program.symbols,
    )


def _moved(
    program: Program, ids: Mapping[str, int], names: tuple[NamedData, ...]
) -> Program:
    """Return a program whose constants are numbered by `names`.

    `names` includes all names of the program; `ids` is name -> index in `names`.
    """
    new = [ids[named.name] for named in program.names]
    return replace(
        program,
        names=names,
        states=tuple(
            state
            if state.initial is None
            else replace(state, initial=new[state.initial])
            for state in program.states
        ),
        methods=tuple(_moved_method(method, new) for method in program.methods),
        delegates=tuple(
            replace(one, names=tuple(sorted(new[n] for n in one.names)))
            for one in program.delegates
        ),
    )


def _moved_method(method: Method, new: Sequence[int]) -> Method:
    blocks = tuple(
        replace(block, graph=_moved_graph(block.graph, new)) for block in method.blocks
    )
    return replace(method, graph=_moved_graph(method.graph, new), blocks=blocks)


def _moved_graph(graph: Graph, new: Sequence[int]) -> Graph:
    return replace(graph, values=tuple(_moved_value(v, new) for v in graph.values))


def _moved_value(value: Value, new: Sequence[int]) -> Value:
    if not isinstance(value.storage, Constant):
        return value
    return replace(value, storage=Constant(new[value.storage.name]))
