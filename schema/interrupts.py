"""Keep interrupts that come while kvc compiles, even if their exception is swallowed.

A signal handler raises an exception wherever Python happens to be. In a finalizer, in a
callback of native code, while a generator is closed, or within code that catches
everything, the exception is swallowed, or another exception replaces it. In: handlers
of SIGINT and SIGTERM that raise, like the handlers of Python and of the command `kvc`.
Out: the exception of a handler is stored. It is raised again by the next
`check_interrupts`, or at the end of the outermost context `KeptInterrupts`.
"""

import signal
import threading
from collections.abc import Callable
from functools import partial, wraps
from types import CodeType, FrameType, TracebackType
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[[int, FrameType | None], object]
Holding = Callable[
    [FrameType], bool
]  # whether to hold an interrupt, by the interrupted frame

_HELD: Final[dict[CodeType, "Holding | None"]] = {}


class _Keeper:
    """Wrapper of signal handlers that stores their exceptions, in the main thread.

    Attributes:
        depth: the number of contexts `KeptInterrupts` that have been entered.
        raised: the stored exception of a handler, until the outermost context ends.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.raised: BaseException | None = None
        # Our wrapper of each signal's handler. A handler that is installed later gets a
        # wrapper of its own: it may call our first wrapper.
        self._own: dict[int, partial[None]] = {}

    def install(self) -> None:
        """Wrap the current handlers of SIGINT and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler) and handler is not self._own.get(number):
                self._own[number] = partial(self._handle, handler)
                signal.signal(number, self._own[number])

    def remove(self) -> None:
        """Restore the original handlers; a handler installed since then stays."""
        for number, own in self._own.items():
            (before,) = own.args
            if signal.getsignal(number) is own:
                signal.signal(number, before)

    def take(self) -> BaseException | None:
        """Return the stored exception of a handler, and store none."""
        raised, self.raised = self.raised, None
        return raised

    def _handle(self, before: Handler, number: int, frame: FrameType | None) -> None:
        """Call the original handler `before`, and store the exception that it raises.

        The exception is then raised, unless `hold_interrupts` makes it wait.
        """
        again = self.raised is not None
        try:
            before(number, frame)
        except BaseException as error:
            self.raised = error
            if not _is_held(frame, again):
                raise


_keeper: Final = _Keeper()


class KeptInterrupts:
    """A context that raises, at its end, any interrupt that came during its block.

    Contexts may be nested. In any thread but the main thread a context does nothing,
    since handlers run only in the main thread. Give this context a `with` statement of
    its own, so that no interrupt comes between its entering and the block.
    """

    def __init__(self) -> None:
        self._entered = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            if not _keeper.depth:
                _keeper.raised = None
            _keeper.install()  # first: until then a handler may raise here
            self._entered = True
            _keeper.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._entered:
            return
        _keeper.depth -= 1
        if _keeper.depth:
            raised = _keeper.raised
        else:
            _keeper.remove()
            raised = _keeper.take()
        if raised is not None and raised is not error:
            raise raised


def keeping_interrupts(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that an interrupt that comes while it runs is never lost."""

    @wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        with KeptInterrupts():
            return function(*args, **kwargs)

    return kept


def check_interrupts() -> None:
    """Raise the stored exception of a signal handler, if there is one.

    Raises:
        KeyboardInterrupt: Ctrl-C; or any other exception of a signal handler.
    """
    if (
        _keeper.raised is not None
        and threading.current_thread() is threading.main_thread()
    ):
        raise _keeper.raised


def hold_interrupts(code: CodeType, where: Holding | None = None) -> None:
    """Keep signal handlers from raising while a function runs.

    An interrupt that comes during the function, or during a function that it calls,
    waits for the next `check_interrupts`.

    Args:
        code: code object of the function.
        where: tells, for the interrupted frame, whether the interrupt waits. With
            `where`, an interrupt that comes while an earlier interrupt waits is raised
            at once. None if every interrupt waits.
    """
    _HELD[code] = where


def _is_held(frame: FrameType | None, again: bool) -> bool:
    here = frame
    while frame is not None:
        if frame.f_code in _HELD:
            where = _HELD[frame.f_code]
            if where is None or (here and not again and where(here)):
                return True
        frame = frame.f_back
    return False


# An interrupt between two lines of these methods would leave half of their work.
for _method in (KeptInterrupts.__enter__, KeptInterrupts.__exit__):
    hold_interrupts(_method.__code__)


# Distinguish failures of a Rust library from interrupts and lack of memory.


def is_failure(error: BaseException) -> bool:
    """Tell whether an error is a failure, and not an interrupt or lack of memory."""
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
