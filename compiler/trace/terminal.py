"""Let Ctrl-C end a trace between two operators, and not within native code.

While torch traces, native code calls back into Python. An exception that a signal
handler raises there may end the process, if native code cannot pass it on (once in 400
interrupts of a tiny decoder, as measured). So an interrupt in torch's code is raised at
the next operator, where torch expects exceptions. An interrupt in the model's own code
is raised at once, and so is a second interrupt.
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
    """Raise waiting interrupts before each traced operator."""
    with patch.object(proxies, "proxy_call", _checked(proxies.proxy_call)):
        yield


def below_torch(frame: FrameType | None) -> bool:
    """Tell whether a frame runs torch or kvc, or Python code called by torch or kvc."""
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


# Keep torch's own reports off the terminal while tracing.


_STRUCTURED = "torch.__trace"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's log handlers, warnings and prints to stderr."""
    # torch's structured trace is left alone: it goes to the folder TORCH_TRACE. If that
    # is not set, its handler removes itself at the first record; a filter would prevent
    # that, and torch would format every graph for nothing.
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger)
        if name != _STRUCTURED
    ]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    for handler in handlers:
        handler.addFilter(_refuse)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_refuse)


def _refuse(_: logging.LogRecord) -> bool:
    return False
