"""Cut a text into windows: which tokens a model gets, and which of them are scored.

A text longer than a window is cut into windows that overlap: tokens in two of them are
scored in the first, and are context in the second.
"""

from collections.abc import Iterator

from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen


@frozen
class Window:
    """A part of a text.

    Attributes:
        begin, end: the tokens that the model sees.
        first: the first of them that is scored; those before it are context.
    """

    begin: int
    first: int
    end: int


def cut_windows(
    count: int, length: int, stride: int, has_start: bool
) -> Iterator[Window]:
    """Yield windows, in which each token is scored once.

    Without a start token nothing predicts the very first one, which is not scored.

    Args:
        count: of all tokens.
        length: of a window, 2 or more.
        stride: how far one begins after the other, less than `length`.
        has_start: whether each window has a start token before it.

    Raises:
        BadSetting: a length or a stride is impossible.
    """
    if length < 2:
        raise BadSetting(name="window", expected="2 tokens or more", found=length)
    if not 1 <= stride < length:
        expected = f"from 1 to {length - 1}, less than the window"
        raise BadSetting(name="stride", expected=expected, found=stride)
    begin, first = 0, 0 if has_start else 1
    while first < count:
        end = min(begin + length, count)
        yield Window(begin, first, end)
        begin, first = begin + stride, end
