"""Notice a text that begins with what its tokenizer puts before it anyway.

In: texts that are the first of their rows, a tokenizer. Out: a warning where the model
would read the token that begins a text twice, as with the text of a chat template.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Final

from kvc.runtime.tokenizers import Tokenizer

_HEAD: Final = 256  # characters of a text that are looked at


class BegunTwice(UserWarning):
    """A text has the token that begins it, and the tokenizer puts another before it."""


def warn_if_begun_twice(
    texts: Iterable[str], tokenizer: Tokenizer, stacklevel: int = 1
) -> None:
    """Warn once if one of some texts is given its beginning twice.

    Args:
        texts: nothing is before them.
        tokenizer: that encodes them.
        stacklevel: whom the warning is about, 1 for the caller of this function.

    Warns:
        BegunTwice: it is so.
    """
    for text in texts:
        head = text[:_HEAD]
        twice = _begun_twice(tokenizer.encode(head), tokenizer.encode(head, False))
        if twice:
            named = ", ".join(map(str, twice))
            message = (
                f"the prompt begins with what the tokenizer puts before it (token "
                f"{named}), so the model reads that twice; leave it out of the text, "
                "which a chat template may have put there, or give the tokens, "
                "tokenizer.encode(text, special=False)"
            )
            warnings.warn(message, BegunTwice, stacklevel=stacklevel + 1)
            return


def _begun_twice(whole: Sequence[int], bare: Sequence[int]) -> Sequence[int]:
    """Return the tokens before a text that it begins with, too; nothing for none.

    Args:
        whole: tokens with what the tokenizer puts around a text.
        bare: tokens of the text alone.
    """
    whole, bare = list(whole), list(bare)
    for count in range(1, len(whole) - len(bare) + 1):
        if whole[count : count + len(bare)] == bare:
            return whole[:count] if bare[:count] == whole[:count] else ()
    return ()
