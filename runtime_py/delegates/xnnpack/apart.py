"""Make native calls with Python callbacks in a separate thread, safe from signals.

Python handles signals in the main thread, and can do so when a callback begins. If the
signal handler then raises, C loses the exception and continues as if the callback had
returned zero. Python handles no signals in a separate thread. An interrupt of the main
thread waits until the call has returned.
"""

from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Final

# The number of nested loops that catch interrupts. An interrupt escapes a loop only
# between two iterations, so it escapes all loops only if further interrupts follow at
# the very next moments at which Python checks for one.
_LOOPS: Final = 4


def call_apart(function: Callable[[], int]) -> int:
    """Call a function in a new thread, wait for its end, and return its result.

    Raises:
        BaseException: the exception that the function raised. Or else the first
            exception that a signal handler raised during the wait; it is raised after
            the function has returned.
        RuntimeError: the system refuses to start a thread.
    """
    call = _Call(function)
    _wait(call, _LOOPS)
    raised = call.raised or call.refused or call.interrupt
    if raised is not None:
        raise raised
    return call.returned


def _wait(call: "_Call", loops: int) -> None:
    """Wait until a call has ended; store exceptions that interrupt the wait.

    The `except` clauses call nothing, since Python can raise an interrupt after any
    call.
    """
    while not call.ended:
        try:
            if loops > 1:
                _wait(call, loops - 1)
            else:
                call.start_or_wait()
        except BaseException as error:
            call.interrupt = call.interrupt or error


class _Call:
    """A function that runs once, however many threads are started for it.

    The class uses locks of C. An interrupt within a method of `threading.Event` could
    leave the event locked for ever; an interrupt within a method of `threading.Thread`
    could make the thread look ended while it runs.

    Attributes:
        ended: whether the function has ended or could not be started.
        returned, raised: the result or exception of the function.
        refused: the error if no thread could be started.
        interrupt: the first exception that a signal handler raised.
    """

    def __init__(self, function: Callable[[], int]) -> None:
        self._function = function
        self._started = False
        # The first thread that enters itself runs the call.
        self._owner: dict[str, object] = {}
        self._done = allocate_lock()
        self._done.acquire()
        self.ended = False
        self.returned = 0
        self.raised: BaseException | None = None
        self.refused: RuntimeError | None = None
        self.interrupt: BaseException | None = None

    def start_or_wait(self) -> None:
        """Start a thread unless one runs, and wait until the function has ended.

        An interrupt can end this method at any point; the caller then calls the method
        again.
        """
        if not self._started and self.refused is None:
            try:
                start_new_thread(self._run, ())
                self._started = True
            except (
                RuntimeError
            ) as error:  # perhaps raised by a handler: the thread may run
                self.refused = error
        if self.refused is not None and self._owner.setdefault("", self) is self:
            self.ended = True
            return
        self._done.acquire()

    def _run(self) -> None:
        own = object()
        if self._owner.setdefault("", own) is not own:
            return
        try:
            self.returned = self._function()
        except BaseException as error:
            self.raised = error
        self.ended = True
        self._done.release()
