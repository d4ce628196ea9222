"""Where in the user's code a trace failed, and with which message.

In: an error of a trace. Out: the lines of the user's code that were running, and the
text of the error as one paragraph.
"""

import re
import traceback
from collections.abc import Iterator

from kvc.compiler.decompose.claims import OURS
from kvc.compiler.trace.lines import CALLER
from kvc.compiler.trace.sources import Frame, frames_in, place_of

_LONGEST = 600  # characters of a text that is not ours
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
    said = f"{kind}: {text[:_LONGEST]}".removesuffix(": ")
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
