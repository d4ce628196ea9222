"""The interface of a backend's run-time half, with numpy arrays for all data.

A `Delegate` is made each time that a program's resources are loaded, and makes a
`Handle` for each of its partitions. A handle prepares a call for arrays at fixed
addresses, so that no work that depends on shapes is left for the run. What a handle
needs for each execution context, it keeps in the context's `Workspace`. None of this
needs torch; bfloat16 arrays use `ml_dtypes`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.owner import Buffer, Group, InitialValue, Owner
from kvc.schema.errors import MissingLibrary
from kvc.schema.frozen import frozen
from kvc.schema.model import Block, Program
from kvc.schema.model import Delegate as Partition
from kvc.schema.torch_package import has_torch


class ReferenceUsed(UserWarning):
    """What a backend takes is run by its reference implementation, which is slower."""


@frozen
class Options:
    """What a backend may want to know of its surroundings.

    Attributes:
        path: of the bundle, for messages.
        program: the verified program that the partitions belong to.
        reference: True to run the reference implementation; False to fail where the
            backend's library is missing; None to use the library where there is one.
        threads: how many threads the process computes with.
        device: the number of the device to compute on, of a backend that has several;
            None for the one that the backend chooses.
    """

    path: str
    program: Program
    reference: bool | None = None
    threads: int = 1
    device: int | None = None


@frozen
class FoundDevice:
    """A device that a backend has found here.

    Attributes:
        name: how `load(device=...)` names it: `vulkan:0`.
        what: what it is, in words.
        missing: why it cannot be used, "" where it can.
        software: whether it is a program of the host, which is slow.
    """

    name: str
    what: str
    missing: str
    software: bool = False


class SoftwareDevice(UserWarning):
    """The only device of a backend is a program of the host, which is slow."""


Library = TypeVar("Library")
_warned: set[str] = set()


def library_unless(
    reference: bool | None, find: Callable[[], Library], backend: str
) -> Library | None:
    """Return a backend's library; None to run its reference, as `Options.reference`.

    Where the library is missing, this says so once in a process (`ReferenceUsed`).

    Raises:
        MissingLibrary: it is missing, and `reference` is False.
    """
    if reference:
        return None
    try:
        return find()
    except MissingLibrary as error:
        if reference is False:
            raise
        if backend not in _warned:
            _warned.add(backend)
            text = f"{error}. Until then {backend} {_without_library()}"
            warnings.warn(text, ReferenceUsed, stacklevel=2)
        return None


def _without_library() -> str:
    if has_torch():
        return "runs its reference, which is slower"
    return "cannot run here: its reference needs PyTorch, which is not installed either"


@frozen
class Packing:
    """Data in a backend's own form, made of the bundle's, which a bundle may hold.

    Attributes:
        key: what it is, in words that mean the same in every process.
        weight: the name of the data that it is a copy of, "" of a target's own file.
        partitions: ids of the program's delegates that use it, ascending.
        nbytes: how long it is.
        content: returns its bytes, as long as the backend is open.
        folder: whether the bytes are a zip archive of a folder, which the target takes.
        remark: what whoever exports it should know, "" for nothing.
    """

    key: str
    weight: str
    partitions: tuple[int, ...]
    nbytes: int
    content: Callable[[], bytes]
    folder: bool = False
    remark: str = ""


class Closeable(Protocol):
    """Something that holds what is to be given back."""

    def close(self) -> None:
        """Give it back."""


Owned = TypeVar("Owned", bound=Closeable)


class Workspace:
    """What delegates have for themselves in one execution context.

    One call at a time runs in a context, so nothing here needs a lock.

    Attributes:
        arena: memory of at least each partition's `workspace_nbytes`.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._owned: dict[object, Closeable] = {}

    def own(self, key: object, make: Callable[[], Owned]) -> Owned:
        """Return what is kept under a key, made on first need.

        It is closed with the context, in the reverse order of making.
        """
        found = self._owned.get(key)
        if found is None:
            found = self._owned[key] = make()
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """Close everything that is kept."""
        while self._owned:
            self._owned.popitem()[1].close()


class Handle(Protocol):
    """A partition that is ready to be prepared; used from many threads.

    Attributes:
        runs_torch: whether it computes with torch's threads. Any other one is taken to
            have threads of its own, and torch gets a single one in calls that run both.
    """

    runs_torch: bool = False

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that computes the outputs from the inputs.

        One that is given buffers of an owner may return before it has: the owner is
        asked to `synchronise` before anybody else looks at what it reads or writes.

        Args:
            inputs: arrays at addresses that stay, of any strides; states included. One
                that the partition makes longer is all of its memory, room included. A
                state that the backend owns is its buffer, always all of it.
            outputs: as `inputs`; the function writes them. One may lie over an input.
            workspace: of the execution context in which the function will run.
            sizes: of the program's symbols in the calls that it is prepared for.
        """

    def pack(self) -> object:
        """Read and pack the weights, perhaps while another thread imports torch.

        Where nobody has asked for it, `prepare` does so.
        """
        return None

    def close(self) -> None:
        """Release what the handle holds; no prepared function runs afterwards."""


def first_write(block: Block) -> int:
    """Return the first instruction that may write what outlives a partition.

    Where a partition fails before it, the partition raises `Unbegun` from the error.
    """
    graph = block.graph
    made = {graph.root_of(value) for value in graph.outputs}
    writes = [update.instruction for update in block.updates]
    makers = enumerate(graph.instructions)
    writes += [index for index, step in makers if made & set(step.results)]
    return min(writes, default=len(graph.instructions))


def on_host(buffers: Sequence[Buffer]) -> Sequence[Array]:
    """Return operands of a partition whose backend owns no states: they are arrays."""
    arrays = [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]
    assert len(arrays) == len(buffers), "the host owns what nobody else does"
    return arrays


class Delegate(Protocol):
    """A backend's run-time half.

    One whose packed data a bundle may hold has its own `pack` and `packed_format`.

    Attributes:
        runs_on: what it computes on, in words, by which `kvc recipes` groups recipes.
        exports_folder: whether what `export` makes is a folder (`Packing.folder`).
    """

    runs_on: ClassVar[str] = ""
    exports_folder: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        """Make it for the resources of a program."""

    @staticmethod
    def check_library() -> None:
        """Check, for `load(..., reference=False)`, that the library can be used.

        Raises:
            LoadError: it cannot.
        """
        return

    @staticmethod
    def devices() -> Sequence[FoundDevice]:
        """Return the devices to choose among, by number; none for most backends.

        Raises:
            MissingLibrary: what would find them is missing.
        """
        return ()

    @staticmethod
    def packed_format() -> str:
        """Return the `format` of the names of what it packs here.

        BACKEND:BUILD:FEATURES, or "" where bundles do not hold what it packs.

        Raises:
            MissingLibrary: it needs a library that cannot be used.
        """
        return ""

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the targets whose own files it makes here; none for most backends.

        Each is named with its version, which its files belong to.
        """
        return ()

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return the file of one of `targets`, equal for equal bundles.

        Args:
            target: which.
            handles: of all partitions of this backend, by their ids.
        """
        raise AssertionError(f"{target} is none of its targets")

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition, its code and its payload, and take the data that it needs.

        The code is the block of the program; that it is sound has been checked, that
        the backend can run it has not.

        Raises:
            FormatError: the payload is damaged, or the code is not for this backend.
        """

    def owner(
        self, groups: Sequence[Group], sizes: Mapping[str, int], initial: InitialValue
    ) -> Owner | None:
        """Return memory for states of a new session; None leaves them to the host.

        Sessions outlive `release`: the owner serves the partitions of each delegate of
        this backend, and is used after this one has been closed.

        Args:
            groups: the states that no other partition and no instruction touches.
            sizes: of the symbols that the session fixes.
            initial: returns what a state begins as, by `State.initial`.

        Raises:
            OutOfMemory: there is no memory.
        """
        return None

    def pack(self, handles: Mapping[int, Handle]) -> Sequence[Packing]:
        """Pack all that ready handles, by the ids of their partitions, will use."""
        for handle in handles.values():
            handle.pack()
        return ()

    def packed(self) -> Mapping[str, int]:
        """Return how many bytes are kept in a form of their own, by data name."""

    def close(self) -> None:
        """Release what handles share; all of them have been closed."""
