"""Find the line of a model's code for error messages.

In: an error that the code raised, or the running call. Out: `module:line` of the
innermost line of the model's own code. Code of torch, Python or kvc is not the model's
own, nor is code that all models of transformers share.
"""

import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

import torch
import transformers
from torch import nn

import kvc.schema

_TRANSFORMERS: Final = str(Path(transformers.__file__).parent)
_MODELS: Final = str(Path(_TRANSFORMERS) / "models")
_OURS: Final = str(Path(__file__).parents[2])
_OTHERS: Final = (
    str(Path(torch.__file__).parent),
    _OURS,
    str(Path(kvc.schema.__file__).parent),
    sysconfig.get_path("stdlib"),
)
NOWHERE: Final = "its code"


def line_of(error: BaseException) -> str:
    """Return the line of a model's code where an error was raised, or "its code"."""
    return _innermost(_raised_in(error))


def running_line() -> str:
    """Return the line of a model's code that is running, or "its code"."""
    return _innermost(reversed([*_running()]))


def _raised_in(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _running() -> Iterator[tuple[FrameType, int]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _innermost(frames: Iterator[tuple[FrameType, int]]) -> str:
    """Return the innermost line of a model's code in a stack of frames.

    The frames come with the outermost first. If no frame is of a model, return the
    innermost line of code that models share.
    """
    found = shared = ""
    for frame, line in frames:
        file = frame.f_code.co_filename
        place = f"{frame.f_globals.get('__name__', '')}:{line}"
        if _is_own(file):
            found = place
        elif file.startswith(_TRANSFORMERS):
            shared = place
    return found or shared or NOWHERE


def _is_own(file: str) -> bool:
    """Tell whether a file is code of a single model, of transformers or of a user."""
    if file.startswith(_MODELS):
        return True
    if file.startswith((_TRANSFORMERS, "<")):
        return False
    installed = any(f"/{name}/" in file for name in ("site-packages", "dist-packages"))
    return not installed and not file.startswith(_OTHERS)


# Text of an error of a model's code, in one line of bounded length.


_LONGEST: Final = 160  # characters of a text that is not kvc's
_LONGEST_KEY: Final = 2  # words of a key; more are a sentence
# A printed module, followed by its parts: "Stack( (layer): Linear(...".
_PARTS: Final = re.compile(r"(\w+)\( \(\w+\): .*")
_BOUNDS: Final = re.compile(
    r"index (-?\d+) is out of bounds for (?:dimension|axis) (\d+) with size (\d+)"
)
# Python's messages about the end of a list, tuple or the like, and torch.nn's.
_PAST_END: Final = re.compile(
    r"(\w+( assignment| object)? )?index (\d+ is )?out of range|pop from .*"
)
_MISSING: Final = "None, so something that it needs is not there"


def words_of(error: BaseException) -> str:
    """Return the text of an error, in one line of bounded length."""
    known = _done(error)
    if known:
        return known
    text = shortened(str(error))
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def shortened(text: str) -> str:
    """Shorten a text to one line of bounded length.

    The parts of a printed module, as in "Stack( (layer): ...", are removed.
    """
    line = _PARTS.sub(r"\1", " ".join(text.split()))
    return line if len(line) <= _LONGEST else line[:_LONGEST].rstrip() + "..."


def _done(error: BaseException) -> str:
    """Describe a known error of Python or torch; "" if its own text is clear."""
    match error:
        case AttributeError(name=str(name), obj=None) if "NoneType" in str(error):
            return f"it asks for {name} of {_MISSING}"
        case AttributeError(name=str(name), obj=found) if found is not None:
            return f"it asks for {name}, which no {type(found).__name__} has"
        case KeyError(args=(key,)) if not _is_sentence(key):
            return shortened(f"it asks for {key!r}, which is not there")
        case IndexError():
            text = str(error)
            if bounds := _BOUNDS.fullmatch(text):
                index, dim, size = bounds.groups()
                return f"it asks for element {index} of {size} along dimension {dim}"
            is_past = _PAST_END.fullmatch(text)
            return "it asks for an element that is not there" if is_past else ""
        case TypeError() if "NoneType" in str(error):
            return f"it computes with {_MISSING}"
    return ""


def _is_sentence(key: object) -> bool:
    """Tell whether the key of a `KeyError` is an error message in words."""
    return isinstance(key, str) and len(key.split()) > _LONGEST_KEY


# Names and code files of modules.


def name_of(module: nn.Module) -> str:
    """Return the name of a module's class, as in `gptj.GPTJAttention`.

    The result is "" for a class that is not of transformers.
    """
    package, _, family = type(module).__module__.partition(".models.")
    if package != "transformers":
        return ""
    return f"{family.partition('.')[0]}.{type(module).__name__}"


def code_of(model: nn.Module) -> list[ModuleType]:
    """Return the Python modules that define the parts of a model.

    A part may belong to another architecture: LFM2-VL has the text model of LFM2.
    """
    names = dict.fromkeys(type(part).__module__ for part in model.modules())
    return [sys.modules[name] for name in names]
