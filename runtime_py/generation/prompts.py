"""Turn the caller's prompts into the tokens of each row.

In: the prompt argument of `generate`: a text, tokens, a list of texts or of tokens, or
an array padded on either side; a tokenizer for texts. Out: the prompt of each row as a
text or tokens, then as tokens, and the tokens that the row already holds.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting
from kvc.schema.setting_checks import check_tokens

Ids = npt.NDArray[np.int64]


@runtime_checkable
class _Array(Protocol):
    """An array or a tensor of any library."""

    @property
    def shape(self) -> Sequence[int]: ...

    def tolist(self) -> object: ...


def batch_of(prompt: object, attention_mask: object) -> Sequence[object] | None:
    """Return the prompts of a batch; None if `prompt` is a single prompt.

    A batch is a list of prompts, or an array of token ids [batch, n].

    Raises:
        BadSetting: the mask does not fit the token ids, or a mask is given for texts.
    """
    parts = prompt if isinstance(prompt, list | tuple) else ()
    if attention_mask is None:
        if any(map(_is_prompt, parts)):
            return parts
        shape = prompt.shape if isinstance(prompt, _Array) else ()
        if len(shape) != 2 or shape[0] == 1:
            return None
    if isinstance(prompt, str) or any(isinstance(part, str) for part in parts):
        raise _bad(
            "attention_mask",
            "none with texts; it marks the padding of token ids [batch, n]",
            "one",
        )
    tokens, lengths = right_padded(prompt, attention_mask)
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def prompts_of(
    prompt: object, batch: Sequence[object] | None
) -> list[str | tuple[int, ...]]:
    """Return the checked prompt of each row, a text or tokens.

    Args:
        prompt: the caller's prompt.
        batch: the prompts of several rows, as `batch_of` returns them; None for one
            prompt.

    Raises:
        BadSetting: there is no prompt, or an item is empty or not a prompt.
    """
    if batch is None:
        return [prompt if isinstance(prompt, str) else _check_tokens(prompt)]
    if not batch:
        raise _bad("prompt", "at least one", "none")
    for number, part in enumerate(batch):
        if not _is_prompt(part):
            found = f"{part!r} as prompt {number}"
            raise _bad("prompt", "each a text or its tokens", found)
    return [
        part if isinstance(part, str) else _check_tokens(part, f" in prompt {number}")
        for number, part in enumerate(batch)
    ]


def tokens_of(
    prompt: str | tuple[int, ...],
    find_tokenizer: Callable[[], Tokenizer],
    is_start: bool,
) -> tuple[int, ...]:
    """Return the tokens of a prompt, with special tokens only at the session's start.

    Args:
        prompt: a text or tokens.
        find_tokenizer: returns the tokenizer for a text.
        is_start: whether the session is empty before the prompt.

    Raises:
        BadSetting: a text has no tokens.
    """
    if isinstance(prompt, str):
        return _check_tokens(list(find_tokenizer().encode(prompt, is_start)))
    return prompt


def histories_of(
    history: Sequence[object], prompts: int | None
) -> Sequence[tuple[int, ...]]:
    """Return the tokens that each row holds already.

    Args:
        history: the tokens of one row; for a batch a list of the tokens of each row;
            empty if the rows hold no tokens.
        prompts: the size of a batch; None for a single prompt.

    Raises:
        BadSetting: the numbers of histories and prompts differ, or an item is not a
            token.
    """
    rows = [history] if prompts is None else history
    if not len(rows):
        return [()] * (prompts or 1)
    if len(rows) != (prompts or 1):
        expected = f"tokens for each prompt, {prompts} times"
        raise _bad("history", expected, f"{len(rows)}")
    for row in rows:
        if prompts is not None and not _is_prompt(row):
            # Otherwise a number would pass for the tokens of a row, as one stop token
            # does.
            raise _bad("history", "a list of tokens for each prompt", repr(row))
    return [check_tokens("history", _listed(row)) for row in rows]


def right_padded(tokens: object, attention_mask: object = None) -> tuple[Ids, Ids]:
    """Return the tokens of each row, right padded, and how many each row has.

    Args:
        tokens: integers [batch, n]: an array or a tensor of any library, or lists
            of equal lengths.
        attention_mask: [batch, n], 1 for a real token and 0 for padding, as tokenizers
            of transformers return it. The real tokens of a row must be adjacent;
            padding is on the left, on the right, or on both sides. None for no padding.

    Returns:
        The tokens, int64 [batch, longest], padded with 0; and the number of tokens of
        each row, int64 [batch]. These are the inputs of a prefill with row lengths.

    Raises:
        BadSetting: shapes or values are invalid, or padding lies between tokens.
    """
    found = _matrix("tokens", tokens)
    rows, width = found.shape
    if attention_mask is None:
        return found.copy(), np.full(rows, width, np.int64)
    mask = _mask(attention_mask, found.shape)
    lengths = mask.sum(axis=1)
    padded = np.zeros((rows, lengths.max(initial=0)), np.int64)
    for row, (shown, length) in enumerate(zip(mask, lengths, strict=True)):
        first = int(shown.argmax()) if length else 0
        if not shown[first : first + length].all():
            raise BadSetting(
                name="attention_mask",
                expected="contiguous ones in each row; padding is only at the ends",
                found=f"zeros between ones in row {row}",
            )
        padded[row, :length] = found[row, first : first + length]
    return padded, lengths.astype(np.int64)


def _mask(attention_mask: object, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    mask = _matrix("attention_mask", attention_mask)
    if mask.shape != shape:
        raise _bad(
            "attention_mask", f"the tokens' shape, {list(shape)}", f"{list(mask.shape)}"
        )
    if not np.isin(mask, (0, 1)).all():
        other = mask[~np.isin(mask, (0, 1))][0]
        raise _bad("attention_mask", "0 or 1 for each token", str(other))
    return mask.astype(np.bool_)


def _matrix(name: str, found: object) -> Ids:
    """Return integers or bools [batch, n] as int64."""
    try:
        array = np.asarray(found)
    except (ValueError, TypeError, RuntimeError) as error:
        ragged = "inhomogeneous" in str(error)
        what = "rows of different lengths" if ragged else str(error)
        raise _bad(name, "numbers [batch, n], as many in each row", what) from error
    if array.ndim != 2:
        raise _bad(name, "two axes, [batch, n]", f"{array.ndim}")
    if array.size and array.dtype.kind not in "iub":
        raise _bad(name, "whole numbers", str(array.dtype))
    return array.astype(np.int64)


def _check_tokens(tokens: object, place: str = "") -> tuple[int, ...]:
    """Check and return the tokens of one prompt.

    Args:
        tokens: the caller's tokens.
        place: which prompt of a batch this is, as text for messages, such as " in
            prompt 2"; "" for a single prompt.

    Raises:
        BadSetting: there are no tokens, or an item is not a token.
    """
    found = check_tokens("prompt", _listed(tokens))
    if not found:
        raise _bad("prompt", "at least one token", f"none{place}")
    return found


def _listed(tokens: object) -> object:
    """Return an array or tensor [n] or [1, n] as a list; return other objects as is."""
    if not isinstance(tokens, _Array):
        return tokens
    found = tokens.tolist()
    if isinstance(found, list) and len(found) == 1 and len(tokens.shape) == 2:
        return found[0]
    return found


def _is_prompt(part: object) -> bool:
    """Tell whether an item of a list is a prompt rather than a token."""
    if isinstance(part, int | np.integer):  # first, since a list may be long
        return False
    if isinstance(part, _Array):
        return len(part.shape) > 0
    return isinstance(part, str | list | tuple)


def _bad(name: str, expected: str, found: str) -> BadSetting:
    return BadSetting(name=name, expected=expected, found=found)
