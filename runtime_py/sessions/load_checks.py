"""Checks of the settings of `load`, and that a bundle can run here."""

import os
from collections.abc import Iterable, Sequence

from kvc.runtime.sessions.sizes import whole_number
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadSetting
from kvc.schema.left import needs_torch, why_torch
from kvc.schema.torch_package import check_torch

Path = str | os.PathLike[str]


def check_some_run(bundle: BundleFile) -> None:
    """Check that at least one method can run.

    A method can run if it does not need torch, or if torch is installed.

    Raises:
        MissingPackage: every method needs torch, which is not installed.
    """
    methods = bundle.program.methods
    if bundle.program.is_listed:
        return
    if methods and all(needs_torch(m.graph, m.graphs[1:]) for m in methods):
        first, (graph, *blocks) = methods[0], methods[0].graphs
        check_torch(
            bundle.path, lambda: f"{why_torch(graph, blocks)}, in method {first.name}"
        )


def check_reference(reference: object) -> None:
    """Raise `BadSetting` unless `reference` is a bool or None."""
    if not isinstance(reference, bool | None):
        expected = "True, False or None"
        raise BadSetting(name="reference", expected=expected, found=repr(reference))


def check_turns(max_turns: int | None) -> int | None:
    """Return `max_turns`; raise `BadSetting` unless it is None or a count."""
    if max_turns is None:
        return None
    turns = whole_number("max_turns", max_turns)
    if turns < 0:
        raise BadSetting(name="max_turns", expected="0 or more", found=turns)
    return turns


def check_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders as a tuple; refuse a string, whose items are letters."""
    single = isinstance(folders, str | bytes | os.PathLike)
    if single or not isinstance(folders, Iterable):
        expected = "a sequence of folders"
        raise BadSetting(name="data_folders", expected=expected, found=repr(folders))
    return tuple(folders)
