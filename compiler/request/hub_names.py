"""Recognize names of models on a hub, which kvc does not download, and say what to do.

In: what was given in place of a folder. Out: the end of a message.
"""

import re
import shlex
from typing import Final

_HUB_NAME: Final = re.compile(
    r"(?:https?://[^/]+/|hf://)?([\w-][\w.-]*/([\w-][\w.-]*))/?"
)


def why_not_fetched(name: str) -> str:
    """Say that there is no such folder, and what to do where it looks like a hub's."""
    text = "there is no such folder, and kvc downloads nothing from a hub"
    found = _HUB_NAME.fullmatch(name)
    if found is None:
        return text
    model, folder = map(shlex.quote, found.groups())
    return (
        f"{text}; if it is a model there, download it, "
        f"`hf download {model} --local-dir {folder}`, and give that folder, ./{folder}"
    )
