"""Restore everything that a model reaches after compiling, also after errors.

In: a model and whatever else is traced. Out: a context; at its end all Python state
that they reach is restored. An interrupt (Ctrl-C) that comes meanwhile waits until
then.
"""

from types import TracebackType

from kvc.compiler.trace.python_state import PythonState
from kvc.schema.interrupts import KeptInterrupts, hold_interrupts


class Unchanged:
    """A context that puts back, at its end, what some objects reach.

    Attributes:
        state: what they reached at its beginning.
    """

    def __init__(self, *roots: object) -> None:
        self.state = PythonState(*roots)
        self._interrupts = KeptInterrupts()

    def __enter__(self) -> "Unchanged":
        self._interrupts.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.state.restore()
        self._interrupts.__exit__(kind, error, trace)


for _method in (Unchanged.__enter__, Unchanged.__exit__):
    hold_interrupts(_method.__code__)
