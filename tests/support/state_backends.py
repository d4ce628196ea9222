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

BACKENDS = {
    "greedy": (Greedy, ByReference),
    "parts": (Parts, ByReference),
    "opaque": (Opaque, OpaqueDelegate),
    "cpu": (CompilerCpu, Cpu),
}
_found = pipeline._backend_of


@contextmanager
def compiling_with(name: str) -> Iterator[None]:
    """Let recipes without a backend have one of `BACKENDS`; "" for none."""
    with pytest.MonkeyPatch.context() as patch:

        def chosen(recipe: Recipe) -> Backend | None:
            own = _found(recipe)
            return own if own or not name else BACKENDS[name][0]({})

        patch.setattr(pipeline, "_backend_of", chosen)
        for other, (_, delegate) in BACKENDS.items():
            patch.setitem(DELEGATES, other, delegate)
        yield
