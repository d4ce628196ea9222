"""Let Ctrl-C end a trace between two operators, and not within native code.

While torch traces, native code calls back into Python. An exception that a signal's
handler raises there may end the process, where native code cannot pass it on (once in
400 interrupts of a tiny decoder, measured 2026-11). So an interrupt that comes in
torch's code waits for the next operator, where torch expects exceptions. One that comes
in the model's own code does not wait, nor does a second one.
"""

import contextlib
import io
import logging
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Final
from unittest.mock import patch

import torch
import torch.fx.experimental.proxy_tensor as proxies

from kvc.schema.interrupts import check_interrupts

_TRACERS: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_PYTHON: Final = sysconfig.get_path("stdlib")
_PACKAGES: Final = "site-packages"


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise interrupts where an operator is traced, the first time or again."""
    with patch.object(proxies, "proxy_call", _checked(proxies.proxy_call)):
        yield


def below_torch(frame: FrameType | None) -> bool:
    """Tell whether what runs is torch's code or kvc's, or Python's that they call."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TRACERS):
            return True
        if not file.startswith((_PYTHON, "<")) or _PACKAGES in file:
            return False
        frame = frame.f_back
    return False


def _checked(call: Callable[..., object]) -> Callable[..., object]:
    @wraps(call)
    def checked(*args: object, **kwargs: object) -> object:
        check_interrupts()
        return call(*args, **kwargs)

    return checked


# Keep torch's own reports off the terminal while tracing; kvc's errors say enough.


_STRUCTURED = "torch.__trace"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's log handlers, warnings and prints to stderr."""
    handlers = _torch_handlers()
    for handler in handlers:
        handler.addFilter(_refuse)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_refuse)


def _torch_handlers() -> list[logging.Handler]:
    """Return what writes torch's reports.

    But not of its structured trace, which goes to a folder that TORCH_TRACE names.
    Where there is none, its handler goes away at the first record, and a handler that
    is kept from noticing has torch print every graph for nothing.
    """
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger)
        if name != _STRUCTURED
    ]
    return [handler for logger in loggers for handler in logger.handlers]


def _refuse(_: logging.LogRecord) -> bool:
    return False
