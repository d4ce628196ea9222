"""The Python state that a model refers to: read, compared and restored.

A trace records the tensor operations of one call. A counter `self.pos += 1`, a list
that grows, or an assigned attribute of a plain object would have the value of the
traced call in every later call. So every object with contents (`object_walker`) is read
before and after the traced call and restored afterwards, and compiling changes no
object.
"""

import enum
import functools
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType, TracebackType

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kvc.compiler.trace.object_walker import (
    Contents,
    Holder,
    Path,
    holders_of,
    is_closed,
    of_class,
    of_tensor,
)
from kvc.schema.interrupts import KeptInterrupts, hold_interrupts

_PLAIN = (
    *(bool, int, float, complex, str, bytes, range, type(None), enum.Enum),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format),
)


# Type of a wrapper -> its attribute for the wrapped function.
_WRAPPED = {
    staticmethod: "__func__",
    classmethod: "__func__",
    property: "fget",
    functools.cached_property: "func",
    functools._lru_cache_wrapper: "__wrapped__",
}


class PythonState:
    """The contents of objects when this snapshot was taken.

    Attributes:
        tensors: path -> tensor, for every path to every tensor.
        arrays: path -> numpy array, with one path for each array.
    """

    def __init__(self, *roots: object) -> None:
        """Read all objects that can be reached from `roots`.

        The path of the first root is "".
        """
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._held: list[tuple[Holder, Contents]] = []
        # Keeps all objects alive, so that their ids stay unique.
        self._seen: dict[int, object] = {}
        self._classes: set[type] = set()
        self._waiting: deque[tuple[Path, object]] = deque()
        for i, root in enumerate(roots):
            path = f"argument {i}" if i else ""
            self._waiting.append((functools.partial(str, path), root))
        while self._waiting:
            self._open(*self._waiting.popleft())

    def _open(self, path: Path, thing: object) -> None:
        if is_closed(thing):
            return
        if isinstance(thing, Tensor):
            self.tensors[path()] = thing
        if id(thing) in self._seen or isinstance(thing, _PLAIN):
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            for holder in of_tensor(path, thing):
                self._hold(holder)
            return
        if isinstance(thing, type):
            self._open_class(thing)
            return
        if isinstance(thing, np.ndarray):
            self.arrays[path()] = thing
        self._waiting.extend(_parts(path, thing))
        found = [*holders_of(path, thing)]
        for holder in found:
            self._hold(holder)
        if found and not isinstance(thing, FunctionType):
            self._open_class(type(thing))

    def _open_class(self, kind: type) -> None:
        if kind not in self._classes:
            self._classes.add(kind)
            for holder in of_class(kind):
                self._hold(holder)

    def _hold(self, holder: Holder) -> None:
        contents = holder.read()
        self._held.append((holder, contents))
        for key, value in contents.items():
            plain = is_closed(value) or type(value) in _PLAIN
            if not plain and not holder.ignored(key) and holder.opened(value):
                self._waiting.append((functools.partial(holder.label, key), value))

    def changed(self) -> str | None:
        """Return the path of the first changed object, None if no object has changed.

        Registered tensors are not compared.
        """
        compared = (pair for pair in self._held if pair[0].compared)
        return next(filter(None, (_difference(*pair) for pair in compared)), None)

    def restore(self) -> None:
        """Restore the contents of all objects to those of the snapshot."""
        for holder, before in self._held:
            if not _identical(holder.read(), before):
                holder.write(before)

    def path_of(self, tensor: Tensor, besides: str = "") -> str:
        """Return a path of a tensor, if possible not `besides`; "" if it has none."""
        paths = [path for path, one in self.tensors.items() if one is tensor]
        others = (path for path in paths if path != besides)
        return next(others, paths[0] if paths else "")


def _parts(path: Path, thing: object) -> Iterator[tuple[Path, object]]:
    """Yield (path, object) for the contents of an object whose contents are fixed."""
    match thing:
        case tuple() | frozenset():
            for i, one in enumerate(thing):
                yield functools.partial(_numbered, path, i), one
        case MethodType():
            yield path, thing.__self__
            yield path, thing.__func__
        case functools.partial():
            yield from ((path, p) for p in (thing.func, thing.args, thing.keywords))
        case FunctionType():
            for held in (thing.__defaults__, thing.__kwdefaults__):
                yield (lambda: f"{path()}, a default"), held
        case _:
            inner = _WRAPPED.get(type(thing))
            if inner is not None:
                yield path, getattr(thing, inner)


def _numbered(path: Path, place: int) -> str:
    return f"{path()}[{place}]"


def _difference(holder: Holder, before: Contents) -> str | None:
    """Return the path of a change in a holder's contents, None if nothing changed."""
    now = holder.read()
    if holder.whole and now.keys() != before.keys():
        return holder.path()
    for key in (*now, *before):
        if holder.ignored(key) or (
            key in now and key in before and _same(now[key], before[key])
        ):
            continue
        new = key not in before and holder.remembered(key)
        if not (new and all(isinstance(v, _PLAIN) for v in tree_leaves(now[key]))):
            return holder.label(key)
    return None


def _same(a: object, b: object) -> bool:
    """Tell whether two values are equal; tensors and objects must be identical."""
    if a is b:
        return True
    if type(a) is not type(b) or is_closed(a):
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
        k is m and (v is w or (isinstance(v, bytes | int) and v == w))
        for (k, v), (m, w) in pairs
    )


# Restore the Python state of a model after compiling, also after errors.


class Unchanged:
    """A context that restores the Python state of some objects at its end.

    Attributes:
        state: the state at the beginning.
    """

    def __init__(self, *roots: object) -> None:
        self.state = PythonState(*roots)
        self._interrupts = KeptInterrupts()

    def __enter__(self) -> "Unchanged":
        self._interrupts.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.state.restore()
        self._interrupts.__exit__(kind, error, trace)


for _method in (Unchanged.__enter__, Unchanged.__exit__):
    hold_interrupts(_method.__code__)
