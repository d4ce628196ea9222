"""Read and restore the contents of Python objects that contain other objects.

In: any object. Out: the object's `Holder`s, one for each way to contain objects:
attributes, slots, attributes of a class, items, elements, variables of a closure,
globals of a function, bytes of an array, cached results of a function. `python_state`
visits the contents in turn; this module does not look at the contents. The methods of
objects are never called, since they can run any code.
"""

import array
import functools
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import getattr_static
from pathlib import Path as FilePath
from types import CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
from torch import Tensor, nn

Contents = dict[Any, object]
Path = Callable[[], str]  # called when an error names it
Label = Callable[[object], str]
Memory: TypeAlias = "bytearray | array.array[Any] | np.ndarray"

_PLAIN: Final = (list, dict, set, deque, bytearray, array.array, np.ndarray)
# The tables of a module; their items have the paths of attributes.
_TABLES: Final = ("_parameters", "_buffers", "_modules")
_LARGEST: Final = 1 << 26  # bytes; larger arrays are not read
# Copies of the parameters that nn.RNNBase keeps for cuDNN.
_FLAT: Final = ("_flat_weights", "_flat_weight_refs")
# Objects of these packages are not opened: they are large, shared, or hold nothing that
# a trace can freeze. Modules of torch.nn and Python's plain containers are opened.
_CLOSED: Final = sys.stdlib_module_names | {"builtins", "numpy", "torch"}
_OPEN: Final = frozenset({"argparse", "collections", "types"})
_INSTALLED: Final = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Holder:
    """One way in which an object contains other objects.

    Attributes:
        path: function that returns the path of the object.
        read: function that returns the current contents.
        write: function that replaces the contents in place.
        label: function that returns the path of the value under a key.
        whole: whether an added or removed key is reported with the path of the object
            instead of the path of the key.
        ignored: function that tells whether the value under a key is checked elsewhere.
        remembered: function that tells whether the value under a new key is only a
            cached result.
        compared: whether the contents are compared at all.
        opened: function that tells whether the contents of an object among the
            contents are read too.
    """

    path: Path
    read: Callable[[], Contents]
    write: Callable[[Contents], None]
    label: Label
    whole: bool = False
    ignored: Callable[[object], bool] = lambda _: False
    remembered: Callable[[object], bool] = lambda _: False
    compared: bool = True
    opened: Callable[[object], bool] = lambda _: True


def is_closed(thing: object) -> bool:
    """Tell whether an object is a weak proxy, whose attributes must not be read."""
    return type(thing) in weakref.ProxyTypes


def holders_of(path: Path, thing: object) -> Iterator[Holder]:
    """Yield the ways in which an object contains other objects, often none."""
    match thing:
        case dict():
            yield _items(path, thing)
        case list() | deque():
            yield _elements(path, thing)
        case set():
            yield _members(path, thing)
        case bytearray() | array.array() | np.ndarray():
            if _is_small(thing):
                yield _bytes(path, thing)
        case FunctionType():
            yield _attributes_of_function(path, thing)
            if not of_library(thing.__module__):
                yield from _variables(path, thing)
        case functools._lru_cache_wrapper():
            yield _remembered(path, thing)
        case _:
            pass
    if _is_open(thing):
        yield from _attributes(path, thing)


def _is_open(thing: object) -> bool:
    if isinstance(thing, type | FunctionType):
        return False
    package = str(type(thing).__module__).partition(".")[0]
    return isinstance(thing, nn.Module) or package in _OPEN or package not in _CLOSED


@functools.cache
def of_library(module: str) -> bool:
    """Tell whether a module belongs to Python, an installed package or kvc."""
    package = str(module).partition(".")[0]
    if package in _CLOSED or package == "kvc":
        return True
    file = getattr(sys.modules.get(str(module)), "__file__", None) or ""
    return any(folder in FilePath(file).parts for folder in _INSTALLED)


def _attributes(path: Path, thing: object) -> Iterator[Holder]:
    """Yield the attributes and slots of an object of a Python class."""

    def label(name: object) -> str:
        return f"{path()}.{name}" if path() else str(name)

    own = _dictionary(thing)
    if own is not None:
        ignored = functools.partial(_is_ignored, thing)
        cached = functools.partial(_is_cached_property, thing)
        read, write = (lambda: dict(own)), _into(own)
        yield Holder(path, read, write, label, ignored=ignored, remembered=cached)
        for name in _TABLES if isinstance(thing, nn.Module) else ():
            table = own.get(name)
            if isinstance(table, dict):  # a compiled module has no Python dict
                yield _table(path, table, label, compared=name == "_modules")
    slots = _slots(type(thing))
    if slots:
        read, write = _through(slots, thing)
        yield Holder(path, read, write, label)


def _dictionary(thing: object) -> dict[str, Any] | None:
    try:
        own = object.__getattribute__(thing, "__dict__")
    except Exception:  # errors of a property, or of a missing attribute
        return None
    return own if type(own) is dict else None


def _is_cached_property(owner: object, name: object) -> bool:
    kind = type(owner)
    held = getattr_static(kind, name, None) if isinstance(name, str) else None
    return isinstance(held, functools.cached_property)


def _is_ignored(owner: object, name: object) -> bool:
    """Tell whether an attribute is checked elsewhere, or repeats other attributes."""
    if isinstance(owner, nn.RNNBase) and name in _FLAT:
        return True
    return isinstance(owner, nn.Module) and name in _TABLES


def _table(
    path: Path, table: dict[Any, object], label: Label, compared: bool
) -> Holder:
    """Return the holder of a module's table of parameters, buffers or submodules."""
    return Holder(path, lambda: dict(table), _into(table), label, compared=compared)


def _into(held: dict[Any, object]) -> Callable[[Contents], None]:
    # Call the builtin class: a subclass may do more when an item is set.
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
    """Yield the attributes of a user's class and of its bases."""
    for one in kind.__mro__:
        if not of_library(one.__module__):
            yield _of_one_class(one)


def _of_one_class(kind: type) -> Holder:
    def write(contents: Contents) -> None:
        now = dict(vars(kind))
        for name in now.keys() - contents.keys():
            type.__delattr__(kind, name)
        for name, value in contents.items():
            if now.get(name) is not value:
                type.__setattr__(kind, name, value)

    path = kind.__qualname__
    return Holder(
        lambda: path, lambda: dict(vars(kind)), write, lambda key: f"{path}.{key}"
    )


def _items(path: Path, items: dict[Any, object]) -> Holder:
    return Holder(
        path,
        lambda: dict(dict.items(items)),
        _into(items),
        lambda key: f"{path()}[{key!r}]",
        whole=True,
    )


def _elements(path: Path, elements: list[object] | deque[object]) -> Holder:
    kind: Any = list if isinstance(elements, list) else deque

    def write(contents: Contents) -> None:
        kind.clear(elements)
        kind.extend(elements, contents.values())

    return Holder(
        path,
        lambda: dict(enumerate(kind.__iter__(elements))),
        write,
        lambda place: f"{path()}[{place}]",
        whole=True,
    )


def _members(path: Path, members: set[object]) -> Holder:
    def write(contents: Contents) -> None:
        set.clear(members)
        set.update(members, contents)

    return Holder(
        path,
        lambda: {m: m for m in set.__iter__(members)},
        write,
        lambda _: path(),
        whole=True,
    )


def _is_small(memory: Memory) -> bool:
    """Tell whether an array is small enough to copy, and contains no objects."""
    if isinstance(memory, np.ndarray):
        return memory.nbytes <= _LARGEST and not memory.dtype.hasobject
    return len(memory) * getattr(memory, "itemsize", 1) <= _LARGEST


def _bytes(path: Path, memory: Memory) -> Holder:
    def write(contents: Contents) -> None:
        (raw,) = contents.values()
        assert isinstance(raw, bytes)
        if isinstance(memory, np.ndarray):
            memory[...] = np.frombuffer(raw, memory.dtype).reshape(memory.shape)
        elif isinstance(memory, bytearray):
            memory[:] = raw
        else:
            memory[:] = array.array(memory.typecode, raw)

    def read() -> Contents:
        return {0: bytes(memory) if isinstance(memory, bytearray) else memory.tobytes()}

    return Holder(path, read, write, lambda _: path())


def _remembered(path: Path, function: Any) -> Holder:  # noqa: ANN401 it has no type
    """Return the holder of a `functools.lru_cache`; restoring clears the cache."""

    def write(contents: Contents) -> None:
        function.cache_clear()

    def read() -> Contents:
        return {0: function.cache_info().currsize}

    return Holder(path, read, write, lambda _: path(), compared=False)


def of_tensor(path: Path, tensor: Tensor) -> Iterator[Holder]:
    """Yield the holder of a tensor's attributes, except torch's own, named "_..."."""
    own = _dictionary(tensor)
    if own is not None:
        read, write = (lambda: dict(own)), _into(own)
        yield Holder(
            path,
            read,
            write,
            lambda name: f"{path()}.{name}",
            ignored=lambda name: str(name).startswith("_"),
        )


def _attributes_of_function(path: Path, function: FunctionType) -> Holder:
    own = vars(function)
    return Holder(path, lambda: dict(own), _into(own), lambda name: f"{path()}.{name}")


def _variables(path: Path, function: FunctionType) -> Iterator[Holder]:
    """Yield the captured variables and the used globals of a user's function."""
    names = function.__code__.co_freevars
    cells = dict(zip(names, function.__closure__ or (), strict=True))
    if cells:
        yield _of_cells(path, cells)
    used, space = _names_in(function.__code__), function.__globals__
    yield _of_space(function.__module__, space, used)
    for held in [space[name] for name in used if name in space]:
        if isinstance(held, ModuleType) and not of_library(held.__name__):
            yield _of_space(held.__name__, vars(held), used)


def _names_in(code: CodeType) -> list[str]:
    """Return the names that code uses, also in functions that the code defines."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    names = [*code.co_names, *(name for part in inner for name in _names_in(part))]
    return list(dict.fromkeys(names))


def _of_cells(path: Path, cells: Mapping[str, CellType]) -> Holder:
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
            cells[name].cell_contents = value

    return Holder(path, read, write, lambda name: f"{path()}, variable {name}")


def _of_space(module: str, space: dict[str, Any], names: list[str]) -> Holder:
    """Return the holder of those globals of a module that are in `names`."""
    return Holder(
        lambda: module,
        lambda: {name: space[name] for name in names if name in space},
        space.update,
        lambda name: f"{module}.{name}",
        opened=_is_users,
    )


def _is_users(thing: object) -> bool:
    """Tell whether an object is a plain value, or of a user's class or function."""
    if isinstance(thing, (*_PLAIN, functools._lru_cache_wrapper)):
        return True
    kind = thing if isinstance(thing, FunctionType | type) else type(thing)
    package = str(kind.__module__).partition(".")[0]
    return package in _OPEN or not of_library(kind.__module__)
