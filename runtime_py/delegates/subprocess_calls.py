"""Plans that a library's subprocess runs, and calls bound to shared memory.

In: plans. Out: calls. Weights are written once, into one file of the subprocess's
folder. The subprocess builds a plan when a call first needs the plan. If the subprocess
has been lost, the next call starts a new subprocess, which builds the call's plan
again. Subclasses define how to build, and what a plan passes to the library.
"""

import contextlib
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np

from kvc.runtime.delegates.library_package import LibraryPackage
from kvc.runtime.delegates.subprocesses import RUNNING_S, Process
from kvc.runtime.memory.arenas import align_up
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import NativeCallFailed, WorkerLost
from kvc.schema.model import NamedData

WEIGHTS: Final = "weights.bin"


class OfData(Protocol):
    """A weight whose content is made from named data of the program."""

    @property
    def data(self) -> int:
        """Return the id of the named data."""


PlanT = TypeVar("PlanT")
WeightT = TypeVar("WeightT", bound=OfData)
HowT = TypeVar("HowT")
# The dtype and shape of each array by name, for each use, such as "inputs".
Passed = Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]]


class ApartContext(ABC, Generic[PlanT, WeightT, HowT]):
    """The plans of a program in a library's subprocess; used by several threads.

    Attributes:
        package: the library.
        work: path of the script with the class `Work`; see `serving.py`.
    """

    package: ClassVar[LibraryPackage]
    work: ClassVar[Path]

    def __init__(self) -> None:
        """Initialize without starting a subprocess."""
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._built: set[str] = set()
        self._offsets: dict[WeightT, tuple[int, int]] = {}
        self._numbers = count()

    def call(
        self, plan: PlanT, read: Callable[[WeightT], Array], how: HowT
    ) -> "ApartCall[PlanT, WeightT, HowT]":
        """Return a call of a plan, bound to new memory.

        Args:
            plan: the plan to run.
            read: returns a weight's elements, in the library's dtype.
            how: how to build the plan; subclasses define the meaning.

        Raises:
            NativeCallFailed: the library refuses to build or bind the plan.
            WorkerLost: the library ended its process, or took too long.
        """
        call = ApartCall(self, plan, read, how, next(self._numbers))
        with self._lock:
            try:
                self._ready(call)
            except BaseException:
                call.free()
                raise
        return call

    def packed(self, names: tuple[NamedData, ...]) -> Mapping[str, int]:
        """Return the number of bytes written for each weight.

        `names` is the program's named data; the result is by the name of the data.
        """
        found: dict[str, int] = {}
        # Other threads may add entries.
        for weight, (_, nbytes) in self._offsets.copy().items():
            name = names[weight.data].name
            found[name] = found.get(name, 0) + nbytes
        return found

    def run(self, call: "ApartCall[PlanT, WeightT, HowT]") -> None:
        """Run a call.

        Raises:
            NativeCallFailed: the library refuses the call.
            WorkerLost: the library ended its process, or took too long.
        """
        with self._lock:
            self._ready(call).ask("run", RUNNING_S, number=call.number)

    def forget(self, call: "ApartCall[PlanT, WeightT, HowT]") -> None:
        """Release, in the subprocess, the binding and the memory map of a call."""
        with self._lock:
            process = self._process
            if process is not None and call.process is process and not process.is_lost:
                # A lost process has no resources of the call to release.
                with contextlib.suppress(WorkerLost, NativeCallFailed):
                    process.ask("forget", RUNNING_S, number=call.number)

    def close(self) -> None:
        """End the subprocess."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    @abstractmethod
    def describe(self, plan: PlanT) -> tuple[str, Passed]:
        """Return a plan's name in the subprocess, and the arrays of a call."""

    @abstractmethod
    def _build(
        self, process: Process, call: "ApartCall[PlanT, WeightT, HowT]"
    ) -> Iterable[str]:
        """Build the plan of a call; return the names of all plans that were built."""

    def _ready(self, call: "ApartCall[PlanT, WeightT, HowT]") -> Process:
        """Return the subprocess, in which the call is bound; the lock must be held."""
        process = self._alive()
        if call.process is process:
            return process
        if call.name not in self._built:
            self._built.update(self._build(process, call))
        process.ask(
            "bind",
            RUNNING_S,
            call.descriptor,
            name=call.name,
            number=call.number,
            nbytes=call.nbytes,
            places=call.places,
        )
        call.process = process
        return process

    def _start(self) -> Process:
        return Process(self.work, self.package.library, f"kvc-{self.package.extra}-")

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
        """Write the weights that are not yet in the file of weights.

        Callers wrap this in `ended_if_broken`.
        """
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
    """End the subprocess if the `with` body raises, since files can be incomplete."""
    try:
        yield
    except BaseException:
        process.end()
        raise


class ApartCall(Generic[PlanT, WeightT, HowT]):
    """A plan bound to memory that is shared with the subprocess.

    Attributes:
        plan: the plan to run.
        read: returns a weight's elements.
        how: how to build the plan; see the subclass of `ApartContext`.
        number: number of the call in its context.
        name: the plan's name in the subprocess.
        places: for each use, such as "inputs", the name, dtype, byte offset and shape
            of each array.
        nbytes: the size of the memory in bytes.
        descriptor: file descriptor of the memory; replaced in a forked child process.
        process: the subprocess in which the call is bound; None before binding.
    """

    def __init__(
        self,
        context: ApartContext[PlanT, WeightT, HowT],
        plan: PlanT,
        read: Callable[[WeightT], Array],
        how: HowT,
        number: int,
    ) -> None:
        """Allocate memory for all arrays; the attributes document the arguments."""
        self._context, self.plan, self.read, self.how = context, plan, read, how
        self.number, (self.name, passed) = number, context.describe(plan)
        self.places: dict[str, list[tuple[str, str, int, tuple[int, ...]]]] = {}
        self.nbytes = 0
        for use, kinds in passed.items():
            self.places[use] = []
            for name, (dtype, shape) in kinds.items():
                self.places[use].append((name, dtype, self.nbytes, shape))
                nbytes = np.dtype(dtype).itemsize * int(np.prod(shape))
                self.nbytes = align_up(self.nbytes + nbytes)
        self._allocate()

    def _allocate(self) -> None:
        self._owner = os.getpid()
        self.process: Process | None = None
        self.descriptor = os.memfd_create(f"kvc-{self._context.package.extra}")
        try:
            os.ftruncate(self.descriptor, self.nbytes)
            memory = mmap.mmap(self.descriptor, self.nbytes)
        except BaseException:
            self.free()
            raise
        self._arrays = {
            name: np.ndarray(shape, dtype, memory, at)
            for some in self.places.values()
            for name, dtype, at, shape in some
        }

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return arrays over the shared memory, by name.

        A forked child process gets new memory, which the parent does not share.
        """
        if self._owner != os.getpid():
            self.free()
            self._allocate()
        return self._arrays

    def run(self) -> None:
        """Run the plan; see `ApartContext.run` for errors."""
        self._context.run(self)

    def free(self) -> None:
        """Release the memory, but not the binding in the subprocess."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Release the call; the caller must not use the call's arrays afterwards."""
        try:
            self._context.forget(self)
        finally:
            self.free()
