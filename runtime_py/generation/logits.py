"""Arrays of tokens and logits, and functions of the caller that change logits.

In: tokens of prompt and answer, one after the other; functions f(tokens int64 [n],
logits float32 [vocab]) -> logits. Out: the tokens as an array that grows; functions
whose results are checked.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.schema.errors import BadSetting

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Processor = Callable[[Ids, Logits], Logits]

_ROOM: Final = 64  # tokens that the first enlargement of a text makes room for


class TokenBuffer:
    """The tokens of prompt and answer so far, as an array that grows."""

    def __init__(self, tokens: Sequence[int] | Ids) -> None:
        """Begin with the tokens before the answer."""
        self._tokens: Ids = np.array(tokens, np.int64)
        self._count = len(tokens)

    def __len__(self) -> int:
        return self._count

    def append(self, token: int) -> None:
        """Add a token at the end."""
        if self._count == self._tokens.size:
            more = np.zeros(self._count + _ROOM, np.int64)
            self._tokens = np.concatenate([self._tokens, more])
        self._tokens[self._count] = token
        self._count += 1

    def copy(self) -> "TokenBuffer":
        """Return a copy, which changes independently."""
        return TokenBuffer(self.array)

    @property
    def array(self) -> Ids:
        """Return the tokens, int64 [n], read-only."""
        found = self._tokens[: self._count]
        found.flags.writeable = False
        return found


def check_processors(found: object) -> tuple[Processor, ...]:
    """Return the caller's processors, each of which checks what the function returns.

    Raises:
        BadSetting: an item cannot be called.
    """
    items = [] if found is None else found
    expected = "a list of functions f(tokens int64 [n], logits float32 [vocab])"
    if not isinstance(items, list | tuple):
        raise BadSetting(name="processors", expected=expected, found=repr(found))
    for item in items:
        if not callable(item):
            raise BadSetting(name="processors", expected=expected, found=repr(item))
    return tuple(map(CheckedProcessor, items))


class CheckedProcessor:
    """A function of the caller, called with a copy of the logits.

    Attributes:
        name: the setting and the function, for messages.
    """

    def __init__(self, function: Callable[[Ids, Logits], object]) -> None:
        self.name = f"processors, {getattr(function, '__name__', function)!s}"
        self._function = function

    def __call__(self, tokens: Ids, logits: Logits) -> Logits:
        """Return the logits that the function returns.

        Raises:
            BadSetting: it returns something else.
        """
        made = np.asarray(self._function(tokens, logits.copy()))
        if made.shape != logits.shape or made.dtype.kind != "f":
            raise BadSetting(
                name=self.name,
                expected=f"to return logits float32 {list(logits.shape)}",
                found=f"{made.dtype} {list(made.shape)}",
            )
        return made.astype(np.float32, copy=False)
