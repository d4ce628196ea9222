"""The adapters that a program has loaded, by name.

In: files of adapters, the memory of a program's slots. Out: for each adapter the number
of the slot that holds it, which rows of sessions refer to.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

import numpy as np

from kvc.runtime.adapters.adapter_file import AdapterFile, Layers
from kvc.runtime.data import Slots
from kvc.schema.adapters import (
    FACTORS,
    GAIN,
    OFFSET,
    RANKS,
    A,
    B,
    count_slots,
    slots_of,
)
from kvc.schema.errors import AdapterInUse, BadSetting, NoSlots, UnknownName
from kvc.schema.frozen import frozen
from kvc.schema.model import Program

NO_SLOT: Final = 0  # of rows without an adapter


@frozen
class Adapter:
    """An adapter that a program has loaded.

    Attributes:
        name: the name by which sessions ask for it.
        digest: the SHA-256 of its file, in hexadecimal.
        slot: the number of the slot that holds it.
        has_gains: whether it multiplies the results of layers, so that it cannot be
            scaled.
    """

    name: str
    digest: str
    slot: int
    has_gains: bool


Chosen = tuple[Adapter | None, float]  # of a row: its adapter, and the scale
PLAIN: Final[Chosen] = (None, 1.0)


class User(Protocol):
    """The states of a session, some of whose rows may have adapters."""

    rows: tuple[Chosen, ...]


class Adapters(Mapping[str, Adapter]):
    """`program.adapters`: load and free adapters; safe to use from many threads.

    A mapping from the names of the loaded adapters.

    Attributes:
        room: how many adapters can be loaded at a time.
        default: the adapter and the scale of sessions that ask for none.
    """

    def __init__(
        self,
        path: str,
        program: Program,
        slots: Slots,
        identity: Callable[[], str],
        check_open: Callable[[], None],
    ) -> None:
        """Load adapters into the slots of a program.

        Args:
            path: the path of the bundle.
            program: the program.
            slots: the memory of its slots.
            identity: returns the identity of the program, which is computed late.
            check_open: raises an error unless the program is open.
        """
        self._check_open = check_open
        self._path, self._program, self._memory = path, program, slots
        self._layers = slots_of(program)
        self.room = count_slots(self._layers)
        self._loaded: dict[str, Adapter] = {}
        self._lock = threading.Lock()
        self._users = WeakSet[User]()
        self._identity = identity
        self.default = PLAIN

    def load(self, path: str | os.PathLike[str], name: str | None = None) -> Adapter:
        """Load an adapter from a file that `kvc adapter` made for this program.

        Args:
            path: the path of the file.
            name: the name of the adapter; None: that of the file, without ".kva".

        Raises:
            BadSetting: the name is taken, or is no text; `path` is not a path.
            NoSlots: the bundle has no slots, or all of them are taken.
            BadAdapter: the file is damaged, not an adapter, or not for this program.
            FileProblem: the system cannot read the file.
            Closed, Forked: the program is closed, or was opened by another process.
        """
        self._check_open()
        self.check_slots()
        with AdapterFile(path) as file:
            chosen = Path(file.path).stem if name is None else name
            layers = file.layers(self._program, self._identity())
            digest = file.digest.hex()
        with self._lock:
            self._check_name(chosen)
            taken = {one.slot for one in self._loaded.values()}
            free = [n for n in range(1, self.room + 1) if n not in taken]
            if not free:
                names = tuple(self._loaded)
                raise NoSlots(path=self._path, room=self.room, loaded=names)
            try:
                self._fill(free[0], layers)
            except BaseException:
                self._memory.clear(free[0])
                raise
            gains = any(GAIN in parts for parts in layers.values())
            made = Adapter(chosen, digest, free[0], gains)
            self._loaded[chosen] = made
        return made

    def use(self, name: str | None, scale: float = 1.0) -> None:
        """Give sessions that ask for no adapter this one; None: none, as at first.

        Raises:
            UnknownName: no adapter of that name is loaded.
            BadSetting: the adapter cannot have that scale.
        """
        with self._lock:
            self.default = self._chosen(name, scale)

    def choose(self, name: object, scale: object) -> Chosen:
        """Return an adapter and a scale, from the settings of a session.

        Raises:
            KvcError: as `use`; NoSlots: the bundle has no slots.
        """
        if name is not None:
            self.check_slots()
        with self._lock:
            return self._chosen(name, scale)

    def claim(self, user: User, rows: Sequence[Chosen]) -> None:
        """Give a session's rows adapters, which cannot be freed from now on.

        Raises:
            UnknownName: another thread has freed one of them.
        """
        with self._lock:
            for adapter, _ in rows:
                if adapter is not None and self._find(adapter.name) is not adapter:
                    raise self._unknown(adapter.name)
            user.rows = tuple(rows)
            self._users.add(user)

    def free(self, name: str) -> None:
        """Free an adapter; its slot can hold another one.

        Raises:
            UnknownName: no adapter of that name is loaded.
            AdapterInUse: a row of an open session has the adapter.
        """
        with self._lock:
            found = self._find(name)
            rows = (user.rows for user in self._users)
            users = sum(found in (adapter for adapter, _ in one) for one in rows)
            if users:
                raise AdapterInUse(name=name, sessions=users)
            self._memory.clear(found.slot)
            del self._loaded[name]
            if self.default[0] is found:
                self.default = PLAIN

    def of_digest(self, digest: str) -> Adapter | None:
        """Return the adapter whose file has a digest, None if none is loaded."""
        with self._lock:
            found = (one for one in self._loaded.values() if one.digest == digest)
            return next(found, None)

    def check_slots(self) -> None:
        """Check that the bundle has slots.

        Raises:
            NoSlots: it has none.
        """
        if not self.room:
            raise NoSlots(path=self._path, room=0, loaded=())

    def __getitem__(self, name: str) -> Adapter:
        with self._lock:
            return self._find(name)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._loaded))

    def __len__(self) -> int:
        return len(self._loaded)

    def __repr__(self) -> str:
        names = ", ".join(self._loaded) or "none"
        return f"<Adapters of {self._path}: {names}; room for {self.room}>"

    def _find(self, name: object) -> Adapter:
        if not isinstance(name, str) or name not in self._loaded:
            raise self._unknown(name)
        return self._loaded[name]

    def _unknown(self, name: object) -> UnknownName:
        known = tuple(self._loaded)
        hint = "; load it with program.adapters.load(FILE)"
        return UnknownName(kind="adapter", name=name, known=known, hint=hint)

    def _chosen(self, name: object, scale: object) -> Chosen:
        if name is None:
            return PLAIN
        found = self._find(name)
        factor = _number(scale)
        if not math.isfinite(factor):
            expected = "a finite number"
            raise BadSetting(name="scale", expected=expected, found=repr(scale))
        return found, fitting(found, factor)

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise BadSetting(name="name", expected="a name", found=repr(name))
        if name in self._loaded:
            expected = "a name that no loaded adapter has, or `free` that one"
            raise BadSetting(name="name", expected=expected, found=repr(name))

    def _fill(self, slot: int, layers: Layers) -> None:
        """Copy an adapter into a slot of each layer; the numbers of ranks come last."""
        for path, parts in layers.items():
            own = self._layers[path]
            used = len(parts[B])
            for name in {A, B, FACTORS} & parts.keys():
                self._memory.array(own[name][0])[slot, :used] = parts[name]
            for name, plain in ((GAIN, 1), (OFFSET, 0)):
                if name in own:
                    given = parts.get(name, plain)
                    self._memory.array(own[name][0])[slot] = given
            self._memory.array(own[RANKS][0])[slot] = used


def fitting(adapter: Adapter, scale: float) -> float:
    """Return a scale; raise `BadSetting` unless it is 1 for an adapter with gains."""
    if adapter.has_gains and scale != 1:
        expected = f"1: adapter {adapter.name!r} multiplies results too (DoRA)"
        raise BadSetting(name="scale", expected=expected, found=repr(scale))
    return scale


def _number(value: object) -> float:
    """Return a number as a float, NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return math.nan
    try:
        return float(value)
    except (OverflowError, TypeError):
        return math.nan
