"""Tests of a bundle that generates no text: each method called with made-up arguments.

In: an open program, and sizes that the user chose. Out: a test of each method, with the
sizes at which it is called.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvc.runtime import Program
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadSetting, UnknownName
from kvc.schema.types import Symbol, symbols_in

_USUAL: Final = 128  # of a size that no state has, within its bounds
_ROWS: Final = "batch"  # the size that counts rows, of which a session has 1


@dataclass(frozen=True, slots=True)
class MethodTest:
    """A call of a method with made-up arguments, in a session without content.

    Attributes:
        method: name of the method.
        sizes: sizes of the method's inputs, by name, and further sizes that the user
            chose.
    """

    method: str
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """Return the name of the method, and the sizes."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.method} at {sizes}" if sizes else self.method


def reads_tokens(path: str) -> bool:
    """Tell whether a bundle has methods that read a prompt and make tokens.

    Raises:
        KvcError: the bundle cannot be read.
    """
    with BundleFile.open(path) as file:
        roles = {method.role for method in file.program.methods}
    return {"prefill", "decode"} <= roles


def method_tests(program: Program, wanted: Mapping[str, int]) -> tuple[MethodTest, ...]:
    """Return a test of each method.

    A size that the user does not choose is that of a new session if states have it.
    Any other is 128, or the allowed size next to it; rows are as few as possible.

    Args:
        program: the open program.
        wanted: the sizes that the user chose, by name.

    Raises:
        UnknownName: the program has no size of a name.
        BadSetting: a size is not allowed.
    """
    symbols = program.symbols
    for name, size in wanted.items():
        if name not in symbols:
            raise UnknownName(kind="size", name=name, known=tuple(symbols))
        if not symbols[name].takes(size):
            raise BadSetting(name=name, expected=symbols[name].allowed, found=size)
    held = held_sizes(program)
    tests = []
    for method in program.methods.values():
        inputs = (method.graph.values[value].type for value in method.graph.inputs)
        used = {*symbols_in(inputs), *wanted}
        sizes = {
            name: wanted[name] if name in wanted else _usual(symbol, name in held)
            for name, symbol in symbols.items()
            if name in used
        }
        tests.append(MethodTest(method.name, sizes))
    return tuple(tests)


def held_sizes(program: Program) -> frozenset[str]:
    """Return the names of the sizes that states have, which a session chooses."""
    return frozenset(symbols_in(state.type for state in program.states.values()))


def _usual(symbol: Symbol, held: bool) -> int:
    if held and symbol.name != _ROWS:
        return symbol.greatest
    size = 1 if symbol.name == _ROWS else _USUAL
    if symbol.sizes:
        return max(
            (one for one in symbol.sizes if one <= size), default=symbol.sizes[0]
        )
    return min(max(size, symbol.lower), symbol.upper)
