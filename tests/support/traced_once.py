"""Compile a model many times, and trace each of its methods once.

Tracing takes nine tenths of the time that a small decoder takes to compile; what comes
after it is what recipes and sets of methods differ in.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from torch import nn

from kvc.compiler import Method, StateSpec, pipeline
from kvc.compiler.capture.export import CapturedMethod, capture


@contextmanager
def traced_once(model: nn.Module) -> Iterator[None]:
    """Let the compiler remember the methods of one model, which must not change."""
    known: dict[str, tuple[Method, Sequence[StateSpec], CapturedMethod]] = {}

    def capture_once(
        module: nn.Module, method: Method, states: Sequence[StateSpec] = ()
    ) -> CapturedMethod:
        if module is not model:
            return capture(module, method, states)
        if method.name not in known:
            known[method.name] = (method, states, capture(model, method, states))
        earlier, same_states, captured = known[method.name]
        assert earlier is method
        assert same_states == states
        return captured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "capture", capture_once)
        yield
