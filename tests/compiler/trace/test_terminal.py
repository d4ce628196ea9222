"""What is kept off the terminal while a model is traced, and what is not."""

import logging

import pytest
import torch
from torch import Tensor, nn
from torch._logging._internal import LazyTraceHandler, trace_log

from kvc.compiler import Method, compile_program


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        logging.getLogger("torch.export").warning("a report")
        return x + 1


def compile_noisy() -> None:
    compile_program(Noisy().eval(), [Method("forward", args=(torch.ones(3),))])


def test_what_writes_a_trace_that_nobody_asked_for_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCH_TRACE", raising=False)
    handler = LazyTraceHandler(None)
    trace_log.addHandler(handler)
    try:
        compile_noisy()
        assert handler not in trace_log.handlers
    finally:
        trace_log.removeHandler(handler)


def test_handlers_of_torch_are_silent_while_it_traces() -> None:
    told: list[str] = []

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger, handler = logging.getLogger("torch.export"), Telling()
    logger.addHandler(handler)
    try:
        compile_noisy()
        assert told == []
        logger.warning("a report")
        assert told == ["a report"]
    finally:
        logger.removeHandler(handler)
