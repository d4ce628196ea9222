"""Keep torch's own reports off the terminal while tracing; kvc's errors say enough."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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
