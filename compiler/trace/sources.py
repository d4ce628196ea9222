"""The source of a traced node, as `package.module:line (module path)`.

File paths never leave this module: with them, two builds would differ.
"""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import torch
from torch.fx.proxy import TracerBase

from kvc.compiler.decompose.claims import OURS, TRACERS

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


# Make torch note the user's source line for every traced op.


CALLER = str(Path(__file__).with_name("shadow.py"))  # calls the user's code


@contextmanager
def lines_kept() -> Iterator[None]:
    """Let tracers note all frames of the traced method, torch's own left out."""
    before = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = (  # type: ignore[method-assign]
        _user_frames  # type: ignore[assignment]
    )
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = before  # type: ignore[method-assign]


def _user_frames(
    _: TracerBase, stack: traceback.StackSummary
) -> traceback.StackSummary:
    """Return the frames of the user's code; none outside of a capture."""
    calls = [i for i, frame in enumerate(stack) if frame.filename == CALLER]
    beneath = stack[calls[-1] + 1 :] if calls else []
    own = [f for f in beneath if not f.filename.startswith(TRACERS)]
    return traceback.StackSummary.from_list(own)


def user_place(frame: FrameType | None) -> str:
    """Return ` at module:line` of the innermost frame of the user's code, or ""."""
    while frame is not None and frame.f_code.co_filename != CALLER:
        if not frame.f_code.co_filename.startswith(TRACERS):
            return f" at {frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# Where in the user's code a trace failed, and with which message.


_LONGEST_MESSAGE = 600  # characters of a text that is not ours
# What went wrong in a body, behind the body's code, which torch prints first.
_GOT = re.compile(r"""\): got (?P<kind>\w+)\((['"]?)(?P<text>.*)\2\)$""", re.MULTILINE)


def user_frames(error: BaseException) -> list[Frame]:
    """Return the files and lines of the user's code that led to an error."""
    for one in _chain(error):
        found = own_frames(str(one)) or own_frames(_beneath_the_call(one))
        if found:
            return found
    return []


def place_of_failure(error: BaseException) -> str:
    """Return ` at module:line` of the user's innermost line, or "" for none."""
    found = user_frames(error)
    return f" at {place_of(found[-1])}" if found else ""


def own_frames(text: str) -> list[Frame]:
    """Return the files and lines of the user's code that a text names."""
    return [frame for frame in frames_in(text) if not frame[0].startswith(OURS)]


def words_of(error: BaseException) -> str:
    """Return what an error says as one paragraph, with its kind and whose it is."""
    kind, text = type(error).__name__, str(error)
    if within := _GOT.search(text):
        kind, text = within["kind"], within["text"]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = " ".join(lines[:4]).partition("The error above occurred")[0].strip()
    said = f"{kind}: {text[:_LONGEST_MESSAGE]}".removesuffix(": ")
    stack = traceback.extract_tb(error.__traceback__)
    raised = own_frames("".join(traceback.format_list(stack[-1:])))
    return f"it raises {said}" if raised else f"torch says {said}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came of."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _beneath_the_call(error: BaseException) -> str:
    """Return the way that an error took, from the call of the traced method on."""
    stack = traceback.extract_tb(error.__traceback__)
    calls = [i for i, frame in enumerate(stack) if frame.filename == CALLER]
    beneath = stack[calls[-1] + 1 :] if calls else []
    return "".join(traceback.format_list(beneath))
