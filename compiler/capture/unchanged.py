"""Restore everything that a model reaches after compiling, also after errors.

In: a model and whatever else is traced. Out: a context; at its end all Python state
that they reach is restored. An interrupt (Ctrl-C) that comes meanwhile waits until
then.
"""

import signal
import threading
from types import FrameType, TracebackType

from kvc.compiler.capture.python_state import PythonState


class Unchanged:
    """A context that puts back, at its end, what some objects reach.

    Attributes:
        state: what they reached at its beginning.
    """

    def __init__(self, *roots: object) -> None:
        self.state = PythonState(*roots)
        self._waits = False
        self._installed = False

    def __enter__(self) -> "Unchanged":
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._installed = True
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.state.restore()
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._waits:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Interrupt what runs, but for the putting back."""
        while frame is not None:
            if frame.f_code is Unchanged.__exit__.__code__:
                self._waits = True
                return
            frame = frame.f_back
        raise KeyboardInterrupt
