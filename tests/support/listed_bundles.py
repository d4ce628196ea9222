"""Bundles with bound lists: made, changed, and run without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from sealing import parts, seal

from kvc.runtime.bound_lists import bind_program
from kvc.runtime.sessions.resources import Resources
from kvc.schema.bounds import Bounds, Columns
from kvc.schema.codec import decode, encode

if TYPE_CHECKING:  # the compiler takes torch, which programs of children do without
    from kvc.compiler import Bundle


def save_listed(bundle: "Bundle", path: Path) -> Path:
    """Save a bundle with the bound lists of all its methods."""
    bounds, refused = bind_program(bundle.program)
    assert bounds is not None
    assert not refused
    bundle.with_bounds(bounds).save(path)
    return path


@contextmanager
def without_lists() -> Iterator[None]:
    """Let methods be bound from their graphs."""
    with mock.patch.object(Resources, "lists", return_value=None):
        yield


def changed_tables(bounds: Bounds, **columns: object) -> Bounds:
    """Return bounds with other columns in their tables."""
    return replace(bounds, columns=Columns({**bounds.columns, **columns}))


def changed_list(bounds: Bounds, number: int, **columns: object) -> Bounds:
    """Return bounds with other columns in one list."""
    one = bounds.lists[number]
    lists = list(bounds.lists)
    lists[number] = replace(one, columns=Columns({**one.columns, **columns}))
    return replace(bounds, lists=tuple(lists))


def resealed(path: Path, bounds: Bounds, to: Path) -> Path:
    """Write a bundle again with other bounds, and with the right digests."""
    blobs, raw = parts(path)
    program = replace(decode(raw, "bundle"), bounds=bounds)
    to.write_bytes(seal(blobs, encode(program)))
    return to
