"""What a caller gives as a prompt: a text, tokens, or several of them; to token ids.

In: a prompt of `generate`, and a tokenizer for when it is needed. Out: its tokens, or
those of each prompt of a batch.
"""

from collections.abc import Callable, Sequence

from kvc.runtime.generation.padding import right_padded
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting
from kvc.schema.setting_checks import check_tokens


def is_batch(prompt: object, attention_mask: object) -> bool:
    """Tell whether a prompt is several: a list of prompts, or an array [batch, n]."""
    if attention_mask is not None:
        return True
    if isinstance(prompt, list | tuple):
        return any(is_prompt(part) for part in prompt)
    shape: Sequence[int] = getattr(prompt, "shape", ())
    return len(shape) == 2 and shape[0] != 1


def tokens_of(
    prompt: object,
    find_tokenizer: Callable[[], Tokenizer],
    is_start: bool,
    place: str = "",
) -> tuple[int, ...]:
    """Return the tokens of a prompt; the special ones belong to the first alone.

    Args:
        prompt: a text or tokens.
        find_tokenizer: for a text.
        is_start: whether nothing is before it.
        place: where it is, for messages, such as " in prompt 2".

    Raises:
        BadSetting: it is empty or no prompt.
    """
    if isinstance(prompt, str):
        tokens = check_tokens("prompt", list(find_tokenizer().encode(prompt, is_start)))
    else:
        tokens = check_tokens("prompt", listed(prompt))
    if not tokens:
        raise BadSetting(
            name="prompt", expected="at least one token", found=f"none{place}"
        )
    return tokens


def prompts_of(prompts: object, attention_mask: object) -> Sequence[object]:
    """Return the prompts of a batch, each a text or tokens.

    Raises:
        BadSetting: they are no batch, or do not fit their mask, or texts have one.
    """
    texts = [prompts] if isinstance(prompts, str) else prompts
    if attention_mask is not None and _has_texts(texts):
        expected = "none with texts; it says which of the token ids [batch, n] count"
        raise BadSetting(name="attention_mask", expected=expected, found="one")
    if attention_mask is not None or not isinstance(prompts, list | tuple):
        tokens, lengths = right_padded(prompts, attention_mask)
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]
    for number, prompt in enumerate(prompts):
        if not is_prompt(prompt):
            expected = "each a text or its tokens"
            found = f"{prompt!r} as prompt {number}"
            raise BadSetting(name="prompt", expected=expected, found=found)
    return prompts


def listed(tokens: object) -> object:
    """Return an array [n] or [1, n] of any library as a list, all else as it is."""
    to_list = getattr(tokens, "tolist", None)
    if to_list is None:
        return tokens
    found: object = to_list()
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        return found[0]
    return found


def is_prompt(part: object) -> bool:
    """Tell whether a part of a list is a prompt, and no token."""
    return isinstance(part, str | list | tuple) or bool(getattr(part, "shape", ()))


def _has_texts(prompts: object) -> bool:
    """Tell whether one of several prompts is a text."""
    given = prompts if isinstance(prompts, list | tuple) else ()
    return any(isinstance(prompt, str) for prompt in given)
