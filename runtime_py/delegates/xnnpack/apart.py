"""Native calls that call Python back, kept apart from signals.

Python handles signals in the main thread, and may do so as a callback begins. What is
raised there is lost to C, which takes the callback to have returned zero. So such calls
are made in a thread of their own, and an interrupt waits until they have returned.
"""

import threading
from _thread import start_new_thread
from collections.abc import Callable


def call_apart(function: Callable[[], int]) -> int:
    """Return what a function returns that is called in another thread; wait for it.

    Raises:
        BaseException: what the function raised; or what a signal's handler raised
            meanwhile, after the function has returned.
        RuntimeError: the system gives no thread.
    """
    call = _Call(function)
    raised: BaseException | None = None
    started = False
    # Not `threading.Thread`: interrupted in `start` or `join`, it says too early that
    # all is over.
    while not call.ended:
        try:
            if not started:
                start_new_thread(call.run, ())
                started = True
            call.done.wait()
        except BaseException as error:
            if not started and isinstance(error, RuntimeError):
                raise
            raised = raised or error
    raised = call.raised or raised
    if raised is not None:
        raise raised
    return call.returned


class _Call:
    """A function that is called once, however many threads run it."""

    def __init__(self, function: Callable[[], int]) -> None:
        self._function = function
        self._once = threading.Lock()
        self.done = threading.Event()
        self.ended = False
        self.returned = 0
        self.raised: BaseException | None = None

    def run(self) -> None:
        if not self._once.acquire(blocking=False):
            return
        try:
            self.returned = self._function()
        except BaseException as error:
            self.raised = error
        self.ended = True
        self.done.set()
