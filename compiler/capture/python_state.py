"""The Python state that a model reaches, to compare and to put back.

A trace records the tensor operations of one call. A counter `self.pos += 1`, a list
that grows, an attribute of a plain object that is assigned anew: all of these would
keep the value of that one call for ever. So everything that holds something (`holders`)
is read before and after the traced call; and put back: compiling changes nothing.
"""

import enum
import functools
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType

import numpy as np
import torch
from torch import Tensor

from kvc.compiler.capture.holders import Contents, Holder, holders_of, of_class

_PLAIN = (
    *(bool, int, float, complex, str, bytes, range, type(None), enum.Enum),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format),
)


class PythonState:
    """What things hold at one moment.

    Attributes:
        tensors: path -> tensor, for each way to every tensor that is reached.
        arrays: path -> numpy array, for each that is reached.
    """

    def __init__(self, *roots: object) -> None:
        """Read everything that is reached from some objects; "" is the first's path."""
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._held: list[tuple[Holder, Contents]] = []
        self._seen: dict[int, object] = {}  # keeps all alive, so that ids stay theirs
        self._waiting: deque[tuple[str, object]] = deque()
        for i, root in enumerate(roots):
            self._waiting.append((f"argument {i}" if i else "", root))
        while self._waiting:
            self._open(*self._waiting.popleft())

    def _open(self, path: str, thing: object) -> None:
        if isinstance(thing, Tensor):
            self.tensors[path] = thing
            return
        if id(thing) in self._seen or isinstance(thing, _PLAIN):
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, np.ndarray):
            self.arrays[path] = thing
        self._waiting.extend(_parts(path, thing))
        found = [*holders_of(path, thing)]
        for holder in found:
            self._hold(holder)
        if found and not isinstance(thing, FunctionType):
            self._open_class(type(thing))

    def _open_class(self, kind: type) -> None:
        if id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            for holder in of_class(kind):
                self._hold(holder)

    def _hold(self, holder: Holder) -> None:
        contents = holder.read()
        self._held.append((holder, contents))
        for key, value in contents.items():
            label = holder.label(key)
            container = isinstance(value, list | dict | set | deque | np.ndarray)
            if not holder.ignored(key) and (holder.opened or container):
                self._waiting.append((label, value))

    def changed(self) -> str | None:
        """Return the path of the first thing that differs now; None when none does.

        Registered tensors are not looked at.
        """
        compared = (pair for pair in self._held if pair[0].compared)
        return next(filter(None, (_difference(*pair) for pair in compared)), None)

    def restore(self) -> None:
        """Put everything back in its place."""
        for holder, before in self._held:
            if not _identical(holder.read(), before):
                holder.write(before)

    def path_of(self, tensor: Tensor, besides: str = "") -> str:
        """Return where a tensor is reached, `besides` only if nowhere else; or ""."""
        paths = [path for path, one in self.tensors.items() if one is tensor]
        others = (path for path in paths if path != besides)
        return next(others, paths[0] if paths else "")


def _parts(path: str, thing: object) -> Iterator[tuple[str, object]]:
    """Yield what an object holds that cannot be put there anew."""
    match thing:
        case tuple() | frozenset():
            yield from ((f"{path}[{i}]", one) for i, one in enumerate(thing))
        case MethodType():
            yield path, thing.__self__
            yield path, thing.__func__
        case functools.partial():
            yield from ((path, p) for p in (thing.func, thing.args, thing.keywords))
        case staticmethod() | classmethod():
            yield path, thing.__func__
        case property():
            yield path, thing.fget
        case FunctionType():
            defaults = (thing.__defaults__, thing.__kwdefaults__)
            yield from ((f"{path}, a default", p) for p in defaults)
        case _:
            return


def _difference(holder: Holder, before: Contents) -> str | None:
    """Return the path of what differs in a holder now, None where nothing does."""
    now = holder.read()
    if holder.whole and now.keys() != before.keys():
        return holder.path
    for key in (*now, *before):
        if not holder.ignored(key) and not _same_under(key, now, before):
            return holder.label(key)
    return None


def _same_under(key: object, a: Contents, b: Contents) -> bool:
    return key in a and key in b and _same(a[key], b[key])


def _same(a: object, b: object) -> bool:
    """Tell whether code can tell two values apart; tensors and objects by identity."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    match a, b:
        case (list() | tuple() | deque(), list() | tuple() | deque()):
            return len(a) == len(b) and all(map(_same, a, b))
        case (dict(), dict()):
            return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
        case _:
            return isinstance(a, _PLAIN) and a == b


def _identical(a: Contents, b: Contents) -> bool:
    """Tell whether two contents are the same objects in the same order."""
    if len(a) != len(b):
        return False
    pairs = zip(a.items(), b.items(), strict=True)
    return all(
        k is m and (v is w or (isinstance(v, bytes) and v == w))
        for (k, v), (m, w) in pairs
    )
