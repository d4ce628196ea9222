"""`right_padded`: a batch of tokens as transformers pads it, as methods of kvc take it.

In: tokens [batch, n] and which of them count, padded at either end. Out: the tokens of
each row from its first place on, and how many they are.
"""

import numpy as np
import numpy.typing as npt

from kvc.schema.errors import BadSetting

Ids = npt.NDArray[np.int64]


def right_padded(tokens: object, attention_mask: object = None) -> tuple[Ids, Ids]:
    """Return the tokens of each row, right padded, and how many each row has.

    Args:
        tokens: whole numbers [batch, n]: an array or a tensor of any library, or lists
            of equal lengths.
        attention_mask: 0 or 1 [batch, n], as a tokenizer of transformers gives it: the
            tokens of a row that count follow each other; padding is on the left, on the
            right, or on both sides. None: all count.

    Returns:
        tokens int64 [batch, longest], 0 where there are none, and lengths int64
        [batch]; what prefills of a program with `lengths` take.

    Raises:
        BadSetting: shapes or values are others, or a mask hides tokens between others.
    """
    found = _matrix("tokens", tokens)
    rows, width = found.shape
    if attention_mask is None:
        return found.copy(), np.full(rows, width, np.int64)
    mask = _mask(attention_mask, found.shape)
    lengths = mask.sum(axis=1)
    longest = int(lengths.max(initial=0))
    padded = np.zeros((rows, longest), np.int64)
    for row, (shown, length) in enumerate(zip(mask, lengths, strict=True)):
        first = int(shown.argmax()) if length else 0
        if not shown[first : first + length].all():
            raise BadSetting(
                name="attention_mask",
                expected="ones that follow each other in each row; tokens are padded "
                "at their ends alone",
                found=f"zeros between ones in row {row}",
            )
        padded[row, :length] = found[row, first : first + length]
    return padded, lengths.astype(np.int64)


def _mask(attention_mask: object, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    mask = _matrix("attention_mask", attention_mask)
    if mask.shape != shape:
        expected = f"as many as tokens, {_shown(shape)}"
        raise _bad("attention_mask", expected, _shown(mask.shape))
    if not np.isin(mask, (0, 1)).all():
        other = mask[~np.isin(mask, (0, 1))][0]
        raise _bad("attention_mask", "0 or 1 for each token", str(other))
    return mask.astype(np.bool_)


def _matrix(name: str, found: object) -> Ids:
    """Return whole numbers or bools [batch, n] as int64."""
    try:
        array = np.asarray(found)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _bad(
            name, "numbers [batch, n], as many in each row", str(error)
        ) from error
    if array.ndim != 2:
        raise _bad(name, "two axes, [batch, n]", f"{array.ndim}")
    if array.size and array.dtype.kind not in "iub":
        raise _bad(name, "whole numbers", str(array.dtype))
    return array.astype(np.int64)


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _bad(name: str, expected: str, found: str) -> BadSetting:
    return BadSetting(name=name, expected=expected, found=found)
