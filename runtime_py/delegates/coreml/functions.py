"""All functions of a package: each method at each combination of sizes.

A state has the same shape and location in all functions. Core ML keeps a state of
floats in its own memory if all functions write float16 to the state, and the state's
initial content is zeros.
"""

from collections.abc import Mapping, Sequence

from kvc.runtime.delegates.coreml.mil import Function
from kvc.runtime.delegates.coreml.translation import translate
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.schema.buckets import fixed_sizes
from kvc.schema.dtypes import DType
from kvc.schema.model import Method, Program
from kvc.schema.types import symbols_in


class CannotExport(Exception):
    """A method or a state cannot be exported.

    Attributes:
        what: description of the method or state.
        reason: why the method or state cannot be exported.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what, self.reason = what, reason


def functions_of(program: Program) -> tuple[Function, ...]:
    """Return the functions of a program's methods.

    Raises:
        CannotExport: a method or a state cannot be exported.
    """
    _check_states(program)
    kept = frozenset(
        number
        for number, state in enumerate(program.states)
        if state.type.dtype in (DType.FLOAT32, DType.FLOAT16) and state.initial is None
    )
    while True:
        made, exact = _translated(program, kept)
        if not exact:
            return made
        kept -= exact


def _translated(
    program: Program, kept: frozenset[int]
) -> tuple[tuple[Function, ...], frozenset[int]]:
    made, exact = list[Function](), frozenset[int]()
    for number, method in enumerate(program.methods):
        for sizes in _sizes_of(program, method):
            name = function_name(method, sizes, program)
            try:
                function, found = translate(program, number, sizes, name, kept)
            except NotTaken as error:
                raise CannotExport(f"method {method.name!r}", str(error)) from error
            made.append(function)
            exact |= found
    return tuple(made), exact


def function_name(method: Method, sizes: Mapping[str, int], program: Program) -> str:
    """Return a method's name, followed by the sizes that differ among functions."""
    several = {one.name for one in program.symbols if len(one.sizes) > 1}
    said = (f"_{key}_{size}" for key, size in sorted(sizes.items()) if key in several)
    return method.name + "".join(said)


def _sizes_of(program: Program, method: Method) -> Sequence[Mapping[str, int]]:
    """Return all combinations of sizes of the symbols in a method's values.

    Raises:
        CannotExport: a symbol has no buckets.
    """
    types = [value.type for graph in method.graphs for value in graph.values]
    found = fixed_sizes(program.symbols, types)
    if found is None:
        used = symbols_in(types)
        free = [s.name for s in program.symbols if s.name in used and not s.sizes]
        what = f"the size {free[0]!r} has no buckets"
        raise CannotExport(f"method {method.name!r}", what)
    return found


def _check_states(program: Program) -> None:
    """Check that each state has one shape.

    Raises:
        CannotExport: a state has several shapes.
    """
    by_name = {symbol.name: symbol for symbol in program.symbols}
    for state in program.states:
        for name in sorted(symbols_in([state.type])):
            sizes = by_name[name].sizes
            if len(sizes) > 1:
                raise CannotExport(
                    f"state {state.name!r}",
                    f"its size {name!r} has the buckets {', '.join(map(str, sizes))}; "
                    "Core ML's functions share a state of one shape, so give it one",
                )
