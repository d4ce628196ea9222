"""What a caller gives as a prompt: a text, tokens, or several of them; to token ids.

In: what `generate` was given, and a tokenizer for when it is needed. Out: the prompt of
each row as a text or tokens, then its tokens, and the tokens that the row holds.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from kvc.runtime.generation.padding import right_padded
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting
from kvc.schema.setting_checks import check_tokens


@runtime_checkable
class _Array(Protocol):
    """An array or a tensor of any library."""

    @property
    def shape(self) -> Sequence[int]: ...

    def tolist(self) -> object: ...


def is_batch(prompt: object, attention_mask: object) -> bool:
    """Tell whether a prompt is several: a list of prompts, or an array [batch, n]."""
    if attention_mask is not None:
        return True
    if isinstance(prompt, list | tuple):
        return any(_is_prompt(part) for part in prompt)
    return (
        isinstance(prompt, _Array) and len(prompt.shape) == 2 and prompt.shape[0] != 1
    )


def prompts_of(
    prompt: object, attention_mask: object
) -> Sequence[str | tuple[int, ...]]:
    """Return the prompt of each row, a text or tokens, which are checked.

    Raises:
        BadSetting: there is none, one is empty or no prompt, or they do not fit their
            mask.
    """
    if not is_batch(prompt, attention_mask):
        return [prompt if isinstance(prompt, str) else _check_tokens(prompt)]
    prompts = _parts_of(prompt, attention_mask)
    if not prompts:
        raise BadSetting(name="prompt", expected="at least one", found="none")
    return [
        part if isinstance(part, str) else _check_tokens(part, f" in prompt {number}")
        for number, part in enumerate(prompts)
    ]


def tokens_of(
    prompt: str | tuple[int, ...],
    find_tokenizer: Callable[[], Tokenizer],
    is_start: bool,
) -> tuple[int, ...]:
    """Return the tokens of a prompt; the special ones belong to the first alone.

    Args:
        prompt: a text or tokens.
        find_tokenizer: for a text.
        is_start: whether nothing is before it.

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
        history: tokens, or of a batch those of each prompt, or nothing.
        prompts: of a batch; None for one prompt that is given by itself.

    Raises:
        BadSetting: there are not as many as prompts, or they are no tokens.
    """
    if prompts is None:
        return [check_tokens("history", _listed(history))]
    if not len(history):
        return [()] * prompts
    if len(history) != prompts:
        expected = f"tokens for each prompt, {prompts} times"
        raise BadSetting(name="history", expected=expected, found=f"{len(history)}")
    for past in history:
        if not _is_prompt(past):
            # A number would pass for the tokens of a row, as one stop token does.
            expected = "a list of tokens for each prompt"
            raise BadSetting(name="history", expected=expected, found=repr(past))
    return [check_tokens("history", _listed(past)) for past in history]


def _parts_of(prompts: object, attention_mask: object) -> Sequence[object]:
    """Return the prompts of a batch, each a text or tokens.

    Raises:
        BadSetting: they do not fit their mask, texts have one, or one is no prompt.
    """
    parts = prompts if isinstance(prompts, list | tuple) else [prompts]
    if attention_mask is not None and any(isinstance(part, str) for part in parts):
        expected = "none with texts; it says which of the token ids [batch, n] count"
        raise BadSetting(name="attention_mask", expected=expected, found="one")
    if attention_mask is not None or parts is not prompts:
        tokens, lengths = right_padded(prompts, attention_mask)
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]
    for number, part in enumerate(parts):
        if not _is_prompt(part):
            expected = "each a text or its tokens"
            found = f"{part!r} as prompt {number}"
            raise BadSetting(name="prompt", expected=expected, found=found)
    return parts


def _check_tokens(tokens: object, place: str = "") -> tuple[int, ...]:
    """Return the tokens of one prompt.

    Args:
        tokens: as a caller gave them.
        place: where they are, for messages, such as " in prompt 2".

    Raises:
        BadSetting: there are none, or they are no tokens.
    """
    found = check_tokens("prompt", _listed(tokens))
    if not found:
        expected = "at least one token"
        raise BadSetting(name="prompt", expected=expected, found=f"none{place}")
    return found


def _listed(tokens: object) -> object:
    """Return an array [n] or [1, n] of any library as a list, all else as it is."""
    if not isinstance(tokens, _Array):
        return tokens
    found = tokens.tolist()
    is_row = len(tokens.shape) == 2 and tokens.shape[0] == 1
    return found[0] if is_row and isinstance(found, list) else found


def _is_prompt(part: object) -> bool:
    """Tell whether a part of a list is a prompt, and no token."""
    if isinstance(part, int | np.integer):  # quicker to ask; a list may be long
        return False
    is_array = isinstance(part, _Array) and len(part.shape) > 0
    return is_array or isinstance(part, str | list | tuple)
