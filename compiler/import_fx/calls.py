"""Calls as the rules of normalisation make them: an op with its arguments by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvc.schema.types import TensorType

Named = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Call:
    """A call to make: an op and its arguments by parameter name.

    `results` says how many of the traced call's results it gives, the first ones;
    None is all.
    """

    op: str
    named: Named
    results: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """An argument that a call of its own makes first."""

    call: Call
    type: TensorType


class Unsupported(Exception):
    """The call cannot be expressed; the text says why."""


Rule = Callable[[Named, TensorType | None], Call]
