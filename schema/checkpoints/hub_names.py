"""Recognize names of models on a hub, from which kvc does not download."""

import re
import shlex
from typing import Final

_HUB_NAME: Final = re.compile(
    r"(?:https?://[^/]+/|hf://)?([\w-][\w.-]*/([\w-][\w.-]*))/?"
)


def why_not_fetched(name: str) -> str:
    """Return text that says that `name` is no folder, and how to download a model."""
    text = "there is no such folder, and kvc downloads nothing from a hub"
    found = _HUB_NAME.fullmatch(name)
    if found is None:
        return text
    model, folder = map(shlex.quote, found.groups())
    return (
        f"{text}; if it is a model there, download it, "
        f"`hf download {model} --local-dir {folder}`, and give that folder, ./{folder}"
    )
