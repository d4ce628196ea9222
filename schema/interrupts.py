"""Lose no interrupt while kvc compiles, whatever swallows its exception.

The handler of a signal raises wherever Python happens to be. In a finalizer, in a
callback of native code, while a generator is closed, or within code that catches
everything, the exception ends there or becomes another one. In: the handlers of SIGINT
and SIGTERM that raise, as Python's own and that of `kvc` do. Out: what a handler raised
is kept, and raised again at the next `check_interrupts`, at the latest at the end.
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
Holding = Callable[[FrameType], bool]  # tells whether to, of where an interrupt came

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_HELD: Final[dict[CodeType, "Holding | None"]] = {}


class _Keeper:
    """The handlers while interrupts are kept; only the main thread changes it.

    Attributes:
        depth: how many contexts are entered.
        raised: what a handler raised, until the outermost context ends.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.raised: BaseException | None = None
        # A handler for each signal, of its own for each that it stands before: one
        # that came later may call it, and may be what the next stands before.
        self._own: dict[int, partial[None]] = {}

    def install(self) -> None:
        """Stand before the handlers that there are."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not self._own.get(number):
                self._own[number] = partial(self._handle, handler)
                signal.signal(number, self._own[number])

    def remove(self) -> None:
        """Put back the handlers that were there, unless others came meanwhile."""
        for number, own in self._own.items():
            (before,) = own.args
            if signal.getsignal(number) is own:
                signal.signal(number, before)

    def take(self) -> BaseException | None:
        """Return what a handler raised, and forget it."""
        raised, self.raised = self.raised, None
        return raised

    def _handle(self, before: Handler, number: int, frame: FrameType | None) -> None:
        """Do what the handler that was there does, and keep what it raises."""
        again = self.raised is not None
        try:
            before(number, frame)
        except BaseException as error:
            self.raised = error
            if not _is_held(frame, again):
                raise


_keeper: Final = _Keeper()


class KeptInterrupts:
    """A context that ends with an interrupt, if one came.

    Contexts may lie in each other. One that is entered in another thread than the main
    one does nothing, since handlers run in the main one alone. Enter it by a `with`
    statement of its own: an interrupt must not come between the entering and the block.
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
    """Return a function that loses no interrupt that comes while it runs."""

    @wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        with KeptInterrupts():
            return function(*args, **kwargs)

    return kept


def check_interrupts() -> None:
    """Raise the interrupt that has come, if its exception was swallowed.

    Raises:
        KeyboardInterrupt: Ctrl-C; or whatever else the handler of a signal raised.
    """
    if (
        _keeper.raised is not None
        and threading.current_thread() is threading.main_thread()
    ):
        raise _keeper.raised


def hold_interrupts(code: CodeType, where: Holding | None = None) -> None:
    """Let no handler raise while a function runs, nor in what it calls.

    Such an interrupt waits for the next `check_interrupts`.

    Args:
        code: of the function.
        where: tells of the frame in which an interrupt came whether it waits; one that
            comes while another waits is then raised at once. None: all wait.
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


# An interrupt between two lines of these would leave half of their work.
for _method in (KeptInterrupts.__enter__, KeptInterrupts.__exit__):
    hold_interrupts(_method.__code__)
