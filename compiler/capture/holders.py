"""What in Python holds something else, and how its contents are read and put back.

In: any object. Out: its `Holder`s, each of one kind: attributes, slots, attributes of
a class, items, elements, variables of a closure, globals of a function, bytes of an
array. `python_state` walks them; nothing here looks at what is held.
"""

import functools
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

import numpy as np
from torch import nn

Contents = dict[Any, object]

Label = Callable[[object], str]

_TABLES = ("_parameters", "_buffers", "_modules")  # of a module, named as attributes
_OWN = frozenset({"forward", "training", *_TABLES})
_LARGEST_ARRAY = 1 << 26  # bytes; numpy arrays above this are not looked into
# Of these, objects are not opened: they are large, shared, or nothing that a trace can
# freeze. Modules of torch.nn are.
_CLOSED = frozenset(
    (
        *("asyncio", "builtins", "concurrent", "io", "logging", "multiprocessing"),
        *("numpy", "threading", "torch", "unittest", "weakref"),
    )
)
# Whose classes and functions are not: they are not the user's.
_LIBRARIES = _CLOSED | sys.stdlib_module_names | {"kvc", "transformers"}


@dataclass(frozen=True, slots=True)
class Holder:
    """One way in which an object holds others.

    Attributes:
        path: of the object.
        read: return what it holds now.
        write: make it hold something else, in place.
        label: the path of what is held under a key.
        whole: a change of which keys there are is one of the object, not of a key.
        ignored: tell whether what is under a key is not to be compared or looked into:
            torch changes it itself while it traces, or it is looked at elsewhere.
        compared: whether anything of it is compared.
        opened: whether objects that it holds are looked into too.
    """

    path: str
    read: Callable[[], Contents]
    write: Callable[[Contents], None]
    label: Label
    whole: bool = False
    ignored: Callable[[object], bool] = lambda _: False
    compared: bool = True
    opened: bool = True


def holders_of(path: str, thing: object) -> Iterator[Holder]:
    """Yield the ways in which an object holds others; nothing for most."""
    match thing:
        case dict():
            yield _items(path, thing)
        case list() | deque():
            yield _elements(path, thing)
        case set():
            yield _members(path, thing)
        case bytearray():
            yield _bytes(path, thing)
        case np.ndarray():
            if thing.nbytes <= _LARGEST_ARRAY and not thing.dtype.hasobject:
                yield _numbers(path, thing)
        case FunctionType():
            if not _of_library(thing.__module__):
                yield from _variables(path, thing)
        case _:
            pass
    if _is_open(thing):
        yield from _attributes(path, thing)


def _is_open(thing: object) -> bool:
    if isinstance(thing, type | FunctionType):
        return False
    return isinstance(thing, nn.Module) or not _in(_CLOSED, type(thing).__module__)


def _in(packages: frozenset[str], module: object) -> bool:
    return str(module).partition(".")[0] in packages


def _of_library(module: object) -> bool:
    return _in(_LIBRARIES, module)


def _attributes(path: str, thing: object) -> Iterator[Holder]:
    """Yield what an object of a Python class holds by name."""

    def label(name: object) -> str:
        return f"{path}.{name}" if path else str(name)

    own = getattr(thing, "__dict__", None)
    if type(own) is dict:
        ignored = functools.partial(_is_ignored, thing)
        yield Holder(path, lambda: dict(own), _into(own), label, ignored=ignored)
    if isinstance(thing, nn.Module):
        for name in _TABLES:
            yield _table(path, vars(thing)[name], label, compared=name == "_modules")
    slots = _slots(type(thing))
    if slots:
        read, write = _through(slots, thing)
        yield Holder(path, read, write, label)


def _is_ignored(owner: object, name: object) -> bool:
    """Tell whether an attribute says nothing about what a traced method did."""
    if isinstance(getattr(type(owner), str(name), None), functools.cached_property):
        return True
    return isinstance(owner, nn.Module) and (name in _OWN or "hook" in str(name))


def _table(
    path: str, table: dict[object, object], label: Label, compared: bool
) -> Holder:
    """Return what a module has registered; tensors are compared elsewhere."""
    return Holder(path, lambda: dict(table), _into(table), label, compared=compared)


def _into(held: dict[Any, object]) -> Callable[[Contents], None]:
    # As the builtin class does it: a subclass may do more when an item is set.
    kind = OrderedDict if isinstance(held, OrderedDict) else dict

    def write(contents: Contents) -> None:
        kind.clear(held)
        kind.update(held, contents)

    return write


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    """Return the slots of a Python class by name."""
    return {
        name: member
        for one in kind.__mro__
        if "__slots__" in vars(one)
        for name, member in vars(one).items()
        if isinstance(member, MemberDescriptorType)
    }


def _through(
    slots: Mapping[str, MemberDescriptorType], thing: object
) -> tuple[Callable[[], Contents], Callable[[Contents], None]]:
    def read() -> Contents:
        found: Contents = {}
        for name, slot in slots.items():
            try:
                found[name] = slot.__get__(thing)
            except AttributeError:
                continue
        return found

    def write(contents: Contents) -> None:
        for name in read().keys() - contents.keys():
            slots[str(name)].__delete__(thing)
        for name, value in contents.items():
            slots[str(name)].__set__(thing, value)

    return read, write


def of_class(kind: type) -> Iterator[Holder]:
    """Yield what classes of the user's hold: one, and those that it derives from."""
    for one in kind.__mro__:
        if not _of_library(one.__module__):
            yield _of_one_class(one)


def _of_one_class(kind: type) -> Holder:
    def write(contents: Contents) -> None:
        now = dict(vars(kind))
        for name in now.keys() - {str(name) for name in contents}:
            type.__delattr__(kind, name)
        for name, value in contents.items():
            if now.get(str(name)) is not value:
                type.__setattr__(kind, str(name), value)

    name = kind.__qualname__
    return Holder(
        name, lambda: Contents(vars(kind)), write, lambda key: f"{name}.{key}"
    )


def _items(path: str, items: dict[object, object]) -> Holder:
    return Holder(
        path,
        lambda: dict(items),
        _into(items),
        lambda key: f"{path}[{key!r}]",
        whole=True,
    )


def _elements(path: str, elements: list[object] | deque[object]) -> Holder:
    def write(contents: Contents) -> None:
        elements.clear()
        elements.extend(contents.values())

    return Holder(
        path,
        lambda: dict(enumerate(elements)),
        write,
        lambda place: f"{path}[{place}]",
        whole=True,
    )


def _members(path: str, members: set[object]) -> Holder:
    def write(contents: Contents) -> None:
        members.clear()
        members.update(contents)

    return Holder(
        path, lambda: {m: m for m in members}, write, lambda _: path, whole=True
    )


def _bytes(path: str, held: bytearray) -> Holder:
    def write(contents: Contents) -> None:
        (raw,) = contents.values()
        assert isinstance(raw, bytes)
        held[:] = raw

    return Holder(path, lambda: {0: bytes(held)}, write, lambda _: path)


def _numbers(path: str, array: np.ndarray) -> Holder:
    def write(contents: Contents) -> None:
        (raw,) = contents.values()
        assert isinstance(raw, bytes)
        array[...] = np.frombuffer(raw, array.dtype).reshape(array.shape)

    return Holder(path, lambda: {0: array.tobytes()}, write, lambda _: path)


def _variables(path: str, function: FunctionType) -> Iterator[Holder]:
    """Yield what a function of the user's captures, and the globals that it names."""
    cells = dict(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    if cells:
        yield _of_cells(path, cells)
    names = [n for n in function.__code__.co_names if n in function.__globals__]
    if names:
        yield _of_globals(function, names)


def _of_cells(path: str, cells: Mapping[str, CellType]) -> Holder:
    def read() -> Contents:
        found: Contents = {}
        for name, cell in cells.items():
            try:
                found[name] = cell.cell_contents
            except ValueError:  # empty
                continue
        return found

    def write(contents: Contents) -> None:
        for name, value in contents.items():
            cells[str(name)].cell_contents = value

    return Holder(path, read, write, lambda name: f"{path}, variable {name}")


def _of_globals(function: FunctionType, names: list[str]) -> Holder:
    space = function.__globals__

    def write(contents: Contents) -> None:
        for name, value in contents.items():
            space[str(name)] = value

    return Holder(
        function.__module__,
        lambda: {name: space[name] for name in names if name in space},
        write,
        lambda name: f"{function.__module__}.{name}",
        opened=False,
    )
