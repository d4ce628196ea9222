"""The backends that the tests of states run with, and how a test gets one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from greedy_backends import ByReference, Greedy, Parts
from opaque_backend import Opaque, OpaqueDelegate

from kvc.compiler import pipeline
from kvc.compiler.backends import Backend
from kvc.compiler.backends.cpu import Cpu as CompilerCpu
from kvc.recipes import Recipe
from kvc.runtime.delegates.cpu import Cpu
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.model import Program
from kvc.tools.reports.methods import describe_methods

BACKENDS = {
    "greedy": (Greedy, ByReference),
    "parts": (Parts, ByReference),
    "opaque": (Opaque, OpaqueDelegate),
    "cpu": (CompilerCpu, Cpu),
}
# What the backend `cpu` leaves to torch, by why: control flow makes a new content of a
# state, or needs to know where it writes; an array gets longer that is no state's.
LEFT = {
    "aten::copy": "a loop's result becomes a state",
    "aten::clone": "a loop begins with a copy",
    "kvc::after": "a loop writes from there on",
    "kvc::append": "a caller's array",
    "kvc::replace": "a state that a method begins anew",
}
_found, _emit = pipeline._backends_of, pipeline.emit_program


@contextmanager
def compiling_with(name: str) -> Iterator[None]:
    """Let recipes without a backend have one of `BACKENDS`; "" for none."""
    with pytest.MonkeyPatch.context() as patch:

        def chosen(recipe: Recipe) -> tuple[Backend, ...]:
            own = _found(recipe)
            return own if own or not name else (BACKENDS[name][0]({}),)

        patch.setattr(pipeline, "_backends_of", chosen)
        patch.setattr(
            pipeline, "emit_program", _emit_natively if name == "cpu" else _emit
        )
        for other, (_, delegate) in BACKENDS.items():
            patch.setitem(DELEGATES, other, delegate)
        yield


def _emit_natively(*arguments: object) -> Program:
    """Emit a program, and look that the backend `cpu`, if it has it, takes all."""
    program = _emit(*arguments)
    if all(part.backend == "cpu" for part in program.delegates):
        for method in describe_methods(program):
            assert set(method.left) <= set(LEFT), f"{method.name} leaves {method.left}"
    return program
