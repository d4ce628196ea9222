"""The source of a traced node, as `package.module:line (module path)`.

File paths never leave this module: with them, two builds would differ.
"""

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_LONGEST = 200  # characters; a source is for reading
_TORCH = str(Path(torch.__file__).parent)
_SCRIPT = ("__main__", "__mp_main__")  # not names of their own: the file's stem is


Frame = tuple[str, str]  # file and line


def source_of(meta: dict[str, object]) -> str:
    """Return the user's innermost line for a node, or torch's own if there is none."""
    trace = meta.get("stack_trace")
    text = trace if isinstance(trace, str) else ""
    frames = frames_in(text) or frames_in(text, of_torch=True)
    line = place_of(frames[-1]) if frames else ""
    path = _module_path(meta)
    text = f"{line} ({path})".strip() if path else line
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def at_source_of(meta: dict[str, object]) -> str:
    """Return ` at ` and the source of a node, "" if it is unknown."""
    source = source_of(meta)
    return f" at {source}" if source else ""


def frames_in(text: str, of_torch: bool = False) -> list[Frame]:
    """Return the files and lines that a text of torch's names, without torch's own."""
    found: list[Frame] = _FRAME.findall(text)
    written = [frame for frame in found if not frame[0].startswith("<")]  # not by torch
    return [f for f in written if of_torch or not f[0].startswith(_TORCH)]


def place_of(frame: Frame) -> str:
    """Return a file and line as `package.module:line`."""
    file, line = frame
    return f"{_module_name(file)}:{line}"


def definition_of(function: Callable[..., object]) -> str:
    """Return ` at package.module:line` of a function's definition, "" if unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    return f" at {place_of((code.co_filename, code.co_firstlineno))}"


def _module_path(meta: dict[str, object]) -> str:
    stack = meta.get("nn_module_stack")
    if not isinstance(stack, dict) or not stack:
        return ""
    path = list(stack.values())[-1][0]
    return path if isinstance(path, str) else ""


@cache
def _module_name(file: str) -> str:
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file and name not in _SCRIPT:
            return name
    return Path(file).stem
