"""What the library's own operators took in the last run of a runtime, for reports."""

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.xnnpack.library import Library
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.native import Question

_NAMES: Final = 1  # of `xnn_profile_info`
_TIMES: Final = 2


class Timings:
    """Asks the library, or lets the native loop do so where it knows the place.

    Attributes:
        question: that the loop asks after each run while somebody records; without an
            answer's place at first.
    """

    def __init__(self, library: Library, pointer: ctypes.c_void_p, what: str) -> None:
        """Ask nothing yet.

        Args:
            library: that runs.
            pointer: where the runtime's address stands, kept alive by the caller.
            what: the runtime is for, for messages.
        """
        self._library, self._what, self._pointer = library, what, pointer
        place = ctypes.addressof(pointer)
        self.question = Question(ask=library.ask, handle=place, what=_TIMES)
        self._names: Sequence[str] = ()
        self._times = np.empty(0, np.uint64)

    def forget(self) -> None:
        """Forget the operators: the runtime is another one from now on."""
        self.question.answer = None

    def of_last_run(self) -> tuple[Sequence[str], Array]:
        """Return the library's operators, and what each took in the last run.

        That is uint64 [operators], whole microseconds as the library counts them.

        Raises:
            NativeCallFailed: the library does not say.
        """
        if self.question.answer is None:
            self._ask_first()
        elif self.question.status:
            self._check(self.question.status)
        return self._names, self._times.copy()

    def _ask_first(self) -> None:
        texts = bytes(self._ask(_NAMES)).split(b"\0")[:-1]
        self._names = [text.decode(errors="backslashreplace") for text in texts]
        self._times = self._ask(_TIMES).view(np.uint64)
        self.question.nbytes = self._times.nbytes
        self.question.answer = address_of(self._times)

    def _ask(self, what: int) -> Array:
        """Return what the library says of its last run, as bytes."""
        ask, needed = (
            self._library.xnn.xnn_get_runtime_profiling_info,
            ctypes.c_size_t(),
        )
        place = ctypes.byref(needed)
        ask(self._pointer, what, 0, None, place)  # says how many bytes it takes
        answer = np.empty(needed.value, np.uint8)
        self._check(ask(self._pointer, what, answer.nbytes, address_of(answer), place))
        return answer

    def _check(self, status: int) -> None:
        self._library.check(status, f"{self._what}: xnn_get_runtime_profiling_info")
