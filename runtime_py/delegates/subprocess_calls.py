"""Plans that the process of a library runs, and calls bound to memory that it sees.

In: plans. Out: calls. Weights are written once, into one file of the process's folder.
What a plan becomes there is built when a call first needs it. Where the process has
been lost, the next call builds again what it needs. A backend says how to build.
"""

import contextlib
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from kvc.runtime.delegates.subprocesses import RUNNING_S, Process
from kvc.runtime.memory.arenas import align_up
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import NativeCallFailed, WorkerLost
from kvc.schema.model import NamedData

# `SharedArrays`: arrays in memory that another process maps by its descriptor.


ArrayKind = tuple[str, tuple[int, ...]]  # dtype, shape


class SharedArrays:
    """Arrays of one call.

    Attributes:
        arrays: by name.
        places: where each lies, in bytes, by name.
        nbytes: of all.
        descriptor: of their memory; another one in a child of a fork.
    """

    def __init__(self, name: str, kinds: Mapping[str, ArrayKind]) -> None:
        """Lay arrays out, and make their memory, which has a name for debuggers."""
        self._name, self._kinds = name, kinds
        self.places: dict[str, int] = {}
        end = 0
        for key, (dtype, shape) in kinds.items():
            self.places[key] = end
            end = align_up(end + np.dtype(dtype).itemsize * int(np.prod(shape)))
        self.nbytes = end
        self._allocate()

    def _allocate(self) -> None:
        self._owner = os.getpid()
        self.descriptor = os.memfd_create(self._name)
        os.ftruncate(self.descriptor, self.nbytes)
        memory = mmap.mmap(self.descriptor, self.nbytes)
        self.arrays: Mapping[str, Array] = {
            key: np.ndarray(shape, dtype, memory, self.places[key])
            for key, (dtype, shape) in self._kinds.items()
        }

    def renew(self) -> bool:
        """Make memory of its own in a child of a fork; tell whether this is one.

        That of the parent is the same for both.
        """
        if self._owner == os.getpid():
            return False
        os.close(self.descriptor)
        self._allocate()
        return True

    def close(self) -> None:
        """Give the memory back; no array over it is used afterwards."""
        os.close(self.descriptor)


# Plans that the process of a library runs, and calls bound to memory that it sees.


WEIGHTS: Final = "weights.bin"


class OfData(Protocol):
    """A weight, made of named data."""

    @property
    def data(self) -> int:
        """Return the id of that."""


PlanT = TypeVar("PlanT")
WeightT = TypeVar("WeightT", bound=OfData)
CallT = TypeVar("CallT", bound="ApartCall[Any]")
ArrayPlaces = list[
    tuple[str, object, int, tuple[int, ...]]
]  # name, dtype, offset, shape


class ApartContext(ABC, Generic[WeightT, CallT]):
    """What a program has in the process of a library; used from many threads."""

    def __init__(self, start: Callable[[], Process]) -> None:
        """Take what starts a process; none is started."""
        self._start = start
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._built: set[str] = set()
        self._offsets: dict[WeightT, tuple[int, int]] = {}
        self._numbers = count()

    def packed(self, names: tuple[NamedData, ...]) -> Mapping[str, int]:
        """Return the bytes of weights that were written, by names of the program."""
        found: dict[str, int] = {}
        for weight, (_, nbytes) in self._offsets.copy().items():  # others write more
            name = names[weight.data].name
            found[name] = found.get(name, 0) + nbytes
        return found

    def run(self, call: CallT) -> None:
        """Run a call.

        Raises:
            NativeCallFailed: the library refuses.
            WorkerLost: it ended its process, or takes too long.
        """
        with self._lock:
            process = self._ready(call)
            process.ask("run", RUNNING_S, number=call.number)

    def forget(self, call: CallT) -> None:
        """Give a call back."""
        with self._lock:
            process = self._process
            if process is not None and call.process is process and not process.is_lost:
                # What it held goes with the process.
                with contextlib.suppress(WorkerLost, NativeCallFailed):
                    process.ask("forget", RUNNING_S, number=call.number)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    @abstractmethod
    def _build(self, process: Process, call: CallT) -> Iterable[str]:
        """Build what a call runs; return the names of all that was built."""

    def _bound(self, call: CallT) -> CallT:
        """Return a new call, bound; it keeps no memory where it cannot be."""
        with self._lock:
            try:
                self._ready(call)
            except BaseException:
                call.memory.close()
                raise
            return call

    def _ready(self, call: CallT) -> Process:
        """Return the process, in which the call is bound."""
        process = self._alive()
        if call.process is process:
            return process
        if call.name not in self._built:
            self._built.update(self._build(process, call))
        process.ask(
            "bind",
            RUNNING_S,
            call.memory.descriptor,
            name=call.name,
            number=call.number,
            nbytes=call.memory.nbytes,
            **call.placed(),
        )
        call.process = process
        return process

    def _alive(self) -> Process:
        if self._process is None or self._process.is_lost:
            self._built.clear()
            self._offsets.clear()
            self._process = self._start()
        return self._process

    def _write_weights(
        self,
        process: Process,
        weights: Iterable[WeightT],
        read: Callable[[WeightT], Array],
    ) -> None:
        """Write those weights that are not in the file, within `ended_if_broken`."""
        with (process.folder / WEIGHTS).open("ab") as file:
            for weight in weights:
                if weight in self._offsets:
                    continue
                content = read(weight).tobytes()
                file.write(bytes(align_up(file.tell()) - file.tell()))
                self._offsets[weight] = file.tell(), len(content)
                file.write(content)


@contextlib.contextmanager
def ended_if_broken(process: Process) -> Iterator[None]:
    """End a process where something fails: nobody knows what is in its files then."""
    try:
        yield
    except BaseException:
        process.end()
        raise


class ApartCall(ABC, Generic[PlanT]):
    """A plan bound to memory that the process sees too.

    Attributes:
        plan: what it runs.
        name: what that is called in the process.
        number: of the call, in its context.
        memory: of its arrays.
        process: in which it is bound, None before.
    """

    def __init__(
        self,
        context: "ApartContext[Any, Any]",
        plan: PlanT,
        name: str,
        number: int,
        memory: tuple[str, Mapping[str, ArrayKind]],
    ) -> None:
        """Make memory: its name for debuggers, and what lies in it."""
        self._context, self.plan, self.name = context, plan, name
        self.number, self.memory = number, SharedArrays(*memory)
        self.process: Process | None = None

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return arrays over the memory, by name."""
        if self.memory.renew():
            self.process = None
        return self.memory.arrays

    @abstractmethod
    def placed(self) -> Mapping[str, ArrayPlaces]:
        """Return where arrays lie, by what they are: inputs, outputs."""

    def run(self) -> None:
        """Run it; raises as `ApartContext.run`."""
        self._context.run(self)

    def close(self) -> None:
        """Give it back; no array over its memory is used afterwards."""
        try:
            self._context.forget(self)
        finally:
            self.memory.close()
