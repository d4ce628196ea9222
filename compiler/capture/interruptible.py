"""Let Ctrl-C end a trace between two operators, and not within native code.

While torch traces, native code calls back into Python. An exception that a signal's
handler raises there may end the process, where native code cannot pass it on (once in
400 interrupts of a tiny decoder, measured 2026-11). So an interrupt waits for the next
operator, where torch expects exceptions; a second one does not wait, for models whose
Python code never comes to one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from unittest.mock import patch

import torch.fx.experimental.proxy_tensor as proxies

from kvc.schema.interrupts import check_interrupts


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise interrupts where an operator is traced, the first time or again."""
    with patch.object(proxies, "proxy_call", _checked(proxies.proxy_call)):
        yield


def _checked(call: Callable[..., object]) -> Callable[..., object]:
    @wraps(call)
    def checked(*args: object, **kwargs: object) -> object:
        check_interrupts()
        return call(*args, **kwargs)

    return checked
