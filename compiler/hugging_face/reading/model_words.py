"""What an error of a model's code says, in one line of bounded length.

In: an error. Out: what the code did wrong, where Python or torch raised it and their
words are of their own insides; else what the error says, with its kind.
"""

import re
from typing import Final

_LONGEST: Final = 160  # characters of a text that is not kvc's
_LONGEST_KEY: Final = 2  # words of a key; more are a sentence
# What a module prints of itself, and whatever follows: "Stack( (layer): Linear(...".
_PARTS: Final = re.compile(r"(\w+)\( \(\w+\): .*")
_BOUNDS: Final = re.compile(
    r"index (-?\d+) is out of bounds for (?:dimension|axis) (\d+) with size (\d+)"
)
# All that Python says of a list, a tuple or the like; torch.nn of a list of modules.
_PAST_END: Final = re.compile(
    r"(\w+( assignment| object)? )?index (\d+ is )?out of range|pop from .*"
)
_MISSING: Final = "None, so something that it needs is not there"


def words_of(error: BaseException) -> str:
    """Return what an error says, in one line of bounded length."""
    known = _done(error)
    if known:
        return known
    text = shortened(str(error))
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def shortened(text: str) -> str:
    """Return a text in one line of bounded length, without the parts of modules."""
    line = _PARTS.sub(r"\1", " ".join(text.split()))
    return line if len(line) <= _LONGEST else line[:_LONGEST].rstrip() + "..."


def _done(error: BaseException) -> str:
    """Return what code did that Python or torch refused; "" if it says so itself."""
    match error:
        case AttributeError(name=str(name), obj=None) if "NoneType" in str(error):
            return f"it asks for {name} of {_MISSING}"
        case AttributeError(name=str(name), obj=found) if found is not None:
            return f"it asks for {name}, which no {type(found).__name__} has"
        case KeyError(args=(key,)) if not _is_sentence(key):
            return shortened(f"it asks for {key!r}, which is not there")
        case IndexError():
            return _past_end(str(error))
        case TypeError() if "NoneType" in str(error):
            return f"it computes with {_MISSING}"
    return ""


def _is_sentence(key: object) -> bool:
    """Tell whether a key that is missing is what code says of it, in words."""
    return isinstance(key, str) and len(key.split()) > _LONGEST_KEY


def _past_end(text: str) -> str:
    """Return which element is not there; "" where an index is wrong otherwise."""
    if bounds := _BOUNDS.fullmatch(text):
        index, dim, size = bounds.groups()
        return f"it asks for element {index} of {size} along dimension {dim}"
    is_past = _PAST_END.fullmatch(text)
    return "it asks for an element that is not there" if is_past else ""
