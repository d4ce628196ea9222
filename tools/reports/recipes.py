"""The recipes of a bundle: what each made of the methods, and for which backend."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvc.schema.left import left_of
from kvc.schema.model import Program
from kvc.schema.text import columns, escape, size


@dataclass(frozen=True, slots=True)
class RecipeReport:
    """A recipe of a bundle.

    Attributes:
        recipe: its name.
        backend: that it is asked for by, "" for a bundle that needs none.
        backends: those that run partitions.
        partitions: of all methods.
        left: instructions that no backend runs, without views and control flow.
        scratch: planned for the method that needs the most.
    """

    recipe: str
    backend: str
    backends: tuple[str, ...]
    partitions: int
    left: int
    scratch: int


def describe_recipes(program: Program) -> tuple[RecipeReport, ...]:
    """Return a report on each, in the order in which `load` looks at them."""
    return tuple(map(_describe, program.bodies))


def _describe(body: Program) -> RecipeReport:
    scratch = (method.graph.scratch_nbytes for method in body.methods)
    return RecipeReport(
        recipe=body.provenance.recipe,
        backend="".join(body.backends[:1]),
        backends=body.backends,
        partitions=len(body.delegates),
        left=sum(sum(left_of(method).values()) for method in body.methods),
        scratch=max(scratch, default=0),
    )


def recipe_lines(recipes: Sequence[RecipeReport]) -> list[str]:
    """Lay out a line for each."""
    title = ("recipe", "--backend", "run by", "partitions", "for PyTorch", "scratch")
    rows = [
        (
            escape(one.recipe),
            escape(one.backend),
            ", ".join(map(escape, one.backends)),
            str(one.partitions),
            str(one.left),
            size(one.scratch),
        )
        for one in recipes
    ]
    return columns([title, *rows], "<<<>>>")


def body_of(program: Program, backend: str | None) -> Program:
    """Return a program by one of its recipes: the first, or that for a backend.

    Raises:
        BadSetting: there is none for it.
    """
    if backend is None:
        return program.bodies[0]
    from kvc.runtime.delegates.selecting import bodies_for  # takes what loading takes

    return bodies_for(program, backend)[0]
