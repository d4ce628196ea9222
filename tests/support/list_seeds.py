"""Small bundles with bound lists, and the calls that are tried on each.

In: the name of a seed. Out: a file, and a script: calls of methods, forks, rewinds and
saved sessions, which Python and libkvc can both play (`list_plays.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

Args = tuple[np.ndarray | None, ...]


class Call(NamedTuple):
    """A call of a method; an argument of None leaves out row lengths."""

    method: str
    args: Args


class Rewind(NamedTuple):
    counts: tuple[int, ...]


class Fork(NamedTuple):
    """What follows is done by a fork of the session."""


class Restore(NamedTuple):
    """The session is saved, and what follows is done by what the file holds."""


class Reset(NamedTuple):
    """All states become what they were at first."""


Step = Call | Rewind | Fork | Restore | Reset


class ListSeed(NamedTuple):
    """A bundle, and what is done with a session of it.

    `sizes` are those that the session fixes.
    """

    write: Callable[[Path], object]
    script: Sequence[Step]
    sizes: Mapping[str, int]


def _tokens(rows: int, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 11, (rows, count))


def _fed(*counts: int) -> list[Step]:
    return [
        Call("decode" if count == 1 else "prefill", (_tokens(1, count, i),))
        for i, count in enumerate(counts)
    ]


def _of_kind(name: str, back: int, first: int = 5) -> ListSeed:
    def write(path: Path) -> object:
        from libkvc_models import kind_bundle  # with torch and the compiler

        return kind_bundle(name, path)

    gone: list[Step] = [Rewind((back,))] if back else []
    script = [*_fed(first, 1, 1), Fork(), *gone, *_fed(1, 3), Reset(), *_fed(2, 1)]
    return ListSeed(write, [*script, Restore(), *_fed(1, 3)], {})


def _rings(keep: int) -> ListSeed:
    def write(path: Path) -> object:
        from libkvc_models import save
        from ring_models import RingDecoder, Shape, ring_methods

        shape = Shape(windows=(5, None), slots=24, length=128, keep=keep)
        return save(RingDecoder(shape), ring_methods(shape.longest), path)

    script = [*_fed(3, 6, 1), Fork(), *_fed(33, 1), Rewind((2,)), *_fed(1)]
    return ListSeed(write, [*script, Restore(), *_fed(1, 2)], {})


def _ragged(kind: str, back: bool) -> ListSeed:
    def write(path: Path) -> object:
        from libkvc_models import ragged_bundle

        return ragged_bundle(kind, path)

    script: list[Step] = [
        Call("prefill", (_tokens(3, 5, 0), np.array([5, 0, 3]))),
        Call("decode", (_tokens(3, 1, 1), np.array([True, False, True]))),
        Fork(),
        Call("prefill", (_tokens(3, 4, 2), None)),
        *([Rewind((1, 0, 2))] if back else []),
        Restore(),
        Call("decode", (_tokens(3, 1, 3), None)),
    ]
    return ListSeed(write, script, {"batch": 3})


def _speaker() -> ListSeed:
    def write(path: Path) -> object:
        from libkvc_models import speaker

        return speaker(path)

    rows = np.random.default_rng(0).random((1, 1, 8, 4), np.float32)
    script: list[Step] = [
        Call("hear", (rows[:, :, :5],)),
        Call("say", (_tokens(1, 4, 1),)),
        Fork(),
        Call("say", (_tokens(1, 2, 2),)),
        Call("hear", (rows[:, :, 2:8],)),
        Call("say", (_tokens(1, 2, 3),)),
        Restore(),
        Call("say", (_tokens(1, 3, 4),)),
    ]
    return ListSeed(write, script, {})


def _growing() -> ListSeed:
    def write(path: Path) -> object:
        from libkvc_models import kind_bundle

        return kind_bundle("append", path)

    # Its lists are for sessions of no tokens, or one.
    first, one = (
        Call("prefill", (_tokens(1, 1, 0),)),
        Call("decode", (_tokens(1, 1, 1),)),
    )
    many = Call("prefill", (_tokens(1, 6, 2),))
    script = [first, Fork(), one, Rewind((1,)), one, Reset(), many, Reset(), first]
    return ListSeed(write, [*script, Restore(), one], {})


LIST_SEEDS: Mapping[str, ListSeed] = {
    "linear": _of_kind("linear", 2),
    "int8": _of_kind("int8", 2),
    "float16": _of_kind("float16", 2),
    "index_copy": _of_kind("index_copy", 2),
    "recurrent": _of_kind("recurrent", 0),
    "shifting": _of_kind("shifting", 0),
    "rings": _rings(0),
    "kept rings": _rings(2),
    "int8 ring": _of_kind("int8 ring that keeps", 1, 4),
    "ragged": _ragged("state", True),
    "ragged rings": _ragged("kept rings", True),
    "encoder": _speaker(),
    "growing": _growing(),
}
