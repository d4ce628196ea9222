"""The adapters that a program has loaded, by name.

In: files of adapters, the memory of a program's slots. Out: for each adapter the number
of the slot that holds it, which rows of sessions refer to.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

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


class User(Protocol):
    """The states of a session, some of whose rows may have adapters."""

    @property
    def adapters(self) -> tuple[Adapter | None, ...]:
        """Return the adapter of each row."""
        ...


class Adapters(Mapping[str, Adapter]):
    """`program.adapters`: load and free adapters; safe to use from many threads.

    A mapping from the names of the loaded adapters.

    Attributes:
        room: how many adapters can be loaded at a time.
        default: the name and scale of the adapter of sessions that ask for none.
    """

    def __init__(
        self, path: str, program: Program, slots: Slots, identity: Callable[[], str]
    ) -> None:
        """Load adapters into the slots of a program, whose identity is computed late.

        `path` is that of the bundle.
        """
        self._path, self._program, self._memory = path, program, slots
        self._layers = slots_of(program)
        self.room = count_slots(self._layers)
        self._loaded: dict[str, Adapter] = {}
        self._lock = threading.Lock()
        self._users = WeakSet[User]()
        self._identity = identity
        self.default: tuple[str | None, float] = (None, 1.0)

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
        """
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
            self._fill(free[0], layers)
            gains = any(GAIN in parts for parts in layers.values())
            made = Adapter(chosen, digest, free[0], gains)
            self._loaded[chosen] = made
        return made

    def use(self, name: str | None, scale: float = 1.0) -> None:
        """Give sessions that ask for no adapter this one; None: none, as at first.

        Raises:
            UnknownName: no adapter of that name is loaded.
        """
        if name is not None:
            _ = self[name]
        self.default = name, scale

    def free(self, name: str) -> None:
        """Free an adapter; its slot can hold another one.

        Raises:
            UnknownName: no adapter of that name is loaded.
            AdapterInUse: a row of an open session has the adapter.
        """
        with self._lock:
            found = self._find(name)
            users = sum(found in user.adapters for user in self._users)
            if users:
                raise AdapterInUse(name=name, sessions=users)
            self._memory.clear(found.slot)
            del self._loaded[name]
            if self.default[0] == name:
                self.default = None, 1.0

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

    def note(self, user: User) -> None:
        """Note a session's states, whose rows may have adapters from now on."""
        with self._lock:
            self._users.add(user)

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

    def _find(self, name: str) -> Adapter:
        if name not in self._loaded:
            known = tuple(self._loaded)
            hint = "; load it with program.adapters.load(FILE)"
            raise UnknownName(kind="adapter", name=name, known=known, hint=hint)
        return self._loaded[name]

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
