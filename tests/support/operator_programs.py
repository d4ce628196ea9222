"""Programs of torch's operators as plain values: the calls, and their tensors.

A step calls one of torch's sampled operators (`op_db`), or its variant in place. The
arguments are inputs, buffers, results of earlier steps, and the other values of the
sample. `Together` is one module of several programs, which share nothing.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal, NamedTuple

import torch
from operator_samples import name_of, operators
from torch import Tensor, nn
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from kvc.compiler import Dim, Method

Tensors = tuple[Tensor, ...]
Source = Literal["inputs", "held", "made"]
Pool = Mapping[Source, Sequence[Tensor]]


class Ref(NamedTuple):
    """One of a program's tensors, or its first elements in another shape."""

    source: Source  # an input, a buffer, or what a step made
    place: int  # among these
    # of which its first elements are taken, None for the tensor as it is
    shape: tuple[int, ...] | None = None

    def of(self, pool: Pool) -> Tensor:
        tensor = pool[self.source][self.place]
        if self.shape is None:
            return tensor
        return tensor.reshape(-1)[: prod(self.shape)].reshape(self.shape)


class Constant(NamedTuple):
    """An argument that is not a tensor."""

    value: object


@dataclass(frozen=True, slots=True)
class Step:
    name: str  # of the operator, with that of its variant
    in_place: bool  # whether it writes over its first argument
    # of its arguments, positional and by name, in the order of `spec`
    leaves: tuple[Ref | Constant, ...]
    spec: TreeSpec  # how they are nested: input, args, kwargs
    count: int = 0  # how many tensors it makes

    def call(self, pool: Pool, apart: bool = False) -> list[Tensor]:
        """Return the tensors that the step makes.

        With `apart`, it gets copies of all arguments but the first, which it may write.
        """
        leaves = self.arguments(pool)
        if apart:
            leaves[1:] = [x.clone() if isinstance(x, Tensor) else x for x in leaves[1:]]
        return self.call_with(leaves)

    def arguments(self, pool: Pool) -> list[object]:
        """Return the step's arguments, in the order of `leaves`."""
        return [
            leaf.of(pool) if isinstance(leaf, Ref) else leaf.value
            for leaf in self.leaves
        ]

    def call_with(self, arguments: list[object]) -> list[Tensor]:
        given, args, kwargs = tree_unflatten(arguments, self.spec)
        function = function_of(self.name, self.in_place)
        made = tree_leaves(function(given, *args, **kwargs))
        return [each for each in made if isinstance(each, Tensor)]

    def refs(self) -> Iterator[Ref]:
        """Yield references to the tensors that the step takes."""
        return (leaf for leaf in self.leaves if isinstance(leaf, Ref))


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a program, without its inputs and buffers."""

    takes: int = 0  # how many inputs it has
    holds: int = 0  # how many buffers
    steps: tuple[Step, ...] = ()  # what is called, in order
    # places among what steps make; all buffers are results too
    results: tuple[int, ...] = ()

    def made_of(
        self, inputs: Sequence[Tensor], held: Sequence[Tensor], apart: bool = False
    ) -> list[Tensor]:
        """Return all tensors that the steps make, in order.

        With `apart`, steps in place get copies of the arguments that they only read.
        """
        made: list[Tensor] = []
        pool: Pool = {"inputs": inputs, "held": held, "made": made}
        for step in self.steps:
            made += step.call(pool, apart and step.in_place)
        return made

    def results_of(self, inputs: Sequence[Tensor], held: Sequence[Tensor]) -> Tensors:
        made = self.made_of(inputs, held)
        return (*(made[place] for place in self.results), *held)


@dataclass(frozen=True, slots=True)
class OperatorProgram:
    """A program, its buffers, and the inputs of its calls."""

    code: Code = Code()  # what it does
    # the inputs of each call, of equal shapes but for dynamic sizes
    calls: tuple[Tensors, ...] = ((), ())
    # buffers, which calls may write; each call begins with what the last left
    held: Tensors = ()
    # the inputs whose first size the calls may choose
    dynamic: frozenset[int] = frozenset()

    def expected(self) -> list[Tensors]:
        """Return eager's tensors of each call: results, then inputs afterwards."""
        held = copies(self.held)
        made = []
        with torch.no_grad():
            for call in self.calls:
                inputs = copies(call)
                made.append(copies((*self.code.results_of(inputs, held), *inputs)))
        return made


def copies(tensors: Sequence[Tensor]) -> Tensors:
    return tuple(each.clone() for each in tensors)


def flat(calls: Sequence[Tensors]) -> list[Tensor]:
    return [each for call in calls for each in call]


def bits_equal(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are equal: NaN equals NaN, and 0.0 is not -0.0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    same = (one == other) & (one.signbit() == other.signbit())
    return bool((same | (one.isnan() & other.isnan())).all())


@cache
def _by_name() -> dict[str, OpInfo]:
    return {name_of(op): op for op in operators()}


def operator(name: str) -> OpInfo:
    return _by_name()[name]


def function_of(name: str, in_place: bool = False) -> Callable[..., object]:
    """Return the function that a step calls."""
    op = operator(name)
    return op.inplace_variant if in_place else op.op


class Together(nn.Module):
    """One module of several programs, which takes the inputs of all, in order."""

    def __init__(self, programs: Sequence[OperatorProgram]) -> None:
        super().__init__()
        self.codes = tuple(each.code for each in programs)
        for number, each in enumerate(programs):
            for place, held in enumerate(each.held):
                self.register_buffer(f"held_{number}_{place}", held.clone())

    def forward(self, tensors: Tensors = ()) -> tuple[Tensor, ...]:
        """Run all programs, and return the results of all."""
        results: list[Tensor] = []
        at = 0
        for number, code in enumerate(self.codes):
            held = [getattr(self, f"held_{number}_{i}") for i in range(code.holds)]
            results += code.results_of(tensors[at : at + code.takes], held)
            at += code.takes
        return tuple(results)


def place_of(error: BaseException) -> int | None:
    """Return which program a `Together` was running at an error; None if none."""
    found = None
    cause: BaseException | None = error
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if frame.f_code is Together.forward.__code__:
                found = frame.f_locals.get("number")
        cause = cause.__cause__ or cause.__context__
    return found


def method_of(programs: Sequence[OperatorProgram]) -> Method:
    """Return the method that compiles a `Together` of these programs."""
    inputs = tuple(each.clone() for one in programs for each in one.calls[0])
    dynamic: dict[str, dict[int, Dim]] = {}
    at = 0
    for number, each in enumerate(programs):
        for place in sorted(each.dynamic):
            most = max(call[place].shape[0] for call in each.calls)
            dim = Dim(f"size{number}", 2, most + 3)
            dynamic[f"tensors[{at + place}]"] = {0: dim}
        at += each.code.takes
    return Method("forward", args=(inputs,) if inputs else (), dynamic=dynamic)
