"""The interface of a backend's run-time half: numpy arrays stand for all tensors.

In: a partition of a program, and named data. Out: a `Handle` that prepares functions
for arrays at fixed addresses. A `Delegate` is made each time that a program's resources
are loaded. The delegate makes a handle for each partition of the backend.
`Handle.prepare` does all shape-dependent work before the run. A handle stores the
resources that belong to one execution context in the context's `Workspace`. The
interface does not need torch; bfloat16 arrays use `ml_dtypes`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Protocol, TypeVar

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.owner import Buffer, Group, InitialValue, Owner
from kvc.schema.errors import MissingLibrary
from kvc.schema.frozen import frozen
from kvc.schema.model import Block, Program
from kvc.schema.model import Delegate as Partition
from kvc.schema.torch_package import INSTALL, has_torch


class ReferenceUsed(UserWarning):
    """The warning that a backend's reference, which is slower, runs its partitions."""


@frozen
class Options:
    """The program and the settings that a backend's delegate may need.

    Attributes:
        path: the path of the bundle, for messages.
        program: the verified program that the partitions belong to.
        reference: True to run the reference implementation; False to fail if the
            backend's library is missing; None to use the library if it is installed.
        threads: the number of compute threads of the process.
        device: the number of the device to compute on, for a backend with several
            devices; None to let the backend select one.
    """

    path: str
    program: Program
    reference: bool | None = None
    threads: int = 1
    device: int | None = None


@frozen
class FoundDevice:
    """A device that a backend has found on this machine.

    Attributes:
        name: the name for `load(device=...)`, such as `vulkan:0`.
        what: a description of the device.
        missing: the reason why the device cannot be used, "" if it can.
        software: whether the device is emulated on the host, which is slow.
    """

    name: str
    what: str
    missing: str
    software: bool = False


@frozen
class NeededLibrary:
    """A library that a backend needs at run time, beside kvc's runtime.

    Attributes:
        name: name of the library, for people.
        install: the command that installs the library.
    """

    name: str
    install: str

    def missing(self, reason: str) -> MissingLibrary:
        """Return the error that the library cannot be used for `reason`."""
        return MissingLibrary(library=self.name, reason=reason, install=self.install)


PYTORCH: Final = NeededLibrary("PyTorch", INSTALL)


class SoftwareDevice(UserWarning):
    """The warning that a backend's only device is emulated on the host, so slow."""


Library = TypeVar("Library")
_warned: set[str] = set()


def library_unless(
    reference: bool | None, find: Callable[[], Library], backend: str
) -> Library | None:
    """Return a backend's library, or None to run the reference implementation.

    `reference` is as in `Options`. If `reference` is None and the library is missing,
    warn once in a process (`ReferenceUsed`).

    Raises:
        MissingLibrary: the library is missing, and `reference` is False.
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
    """Weights that a backend has packed, for storage in a bundle.

    Attributes:
        key: a description that is the same in every process.
        weight: the name of the packed weight, "" for the file of an export target.
        partitions: the ids of the program's partitions that use the packed data,
            ascending.
        nbytes: the size of the packed data in bytes.
        content: returns the packed bytes, as long as the backend is open.
        folder: whether the bytes are a zip archive, since the target takes a folder.
        remark: a note for the user who exports the file, "" for none.
    """

    key: str
    weight: str
    partitions: tuple[int, ...]
    nbytes: int
    content: Callable[[], bytes]
    folder: bool = False
    remark: str = ""


class Closeable(Protocol):
    """A resource that must be closed."""

    def close(self) -> None:
        """Release the resource."""


Owned = TypeVar("Owned", bound=Closeable)


class Workspace:
    """Resources that delegates store in one execution context.

    Only one call at a time runs in a context, so a workspace needs no lock.

    Attributes:
        arena: scratch memory, at least as large as each partition's `workspace_nbytes`.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._owned: dict[object, Closeable] = {}

    def own(self, key: object, make: Callable[[], Owned]) -> Owned:
        """Return the resource stored under a key; make it at the first request.

        When the context is closed, its resources are closed, the newest first.
        """
        found = self._owned.get(key)
        if found is None:
            found = self._owned[key] = make()
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """Close all stored resources."""
        while self._owned:
            self._owned.popitem()[1].close()


class Handle(Protocol):
    """A loaded partition; safe to use from many threads.

    Attributes:
        runs_torch: whether the handle computes with torch's threads. If not, the handle
            is assumed to have separate threads, and torch gets a single thread in calls
            that also run torch kernels.
        moves: whether what `prepare` returns are native calls, whose operands can be
            moved to other states.
    """

    runs_torch: bool = False
    moves: bool = False

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that computes the outputs from the inputs.

        If a state's memory belongs to a backend (a `StateBuffer`), the function may
        return before its work is done. The caller must then call `synchronise` on the
        owner of that memory before any other access to the function's inputs and
        outputs.

        Args:
            inputs: arrays at fixed addresses, of any strides, including states. An
                array that the partition extends includes the unused memory after its
                elements. For a state that the backend owns, the input is the
                `StateBuffer` of the whole state.
            outputs: the arrays or buffers that the function writes, in the form of
                `inputs`. An output may alias an input.
            workspace: the workspace of the execution context in which the function will
                run.
            sizes: the sizes of the program's symbols in the prepared calls.
        """

    def pack(self) -> object:
        """Read and pack the weights, perhaps while another thread imports torch.

        If `pack` has not been called, `prepare` packs the weights.
        """
        return None

    def close(self) -> None:
        """Release the handle's resources; prepared functions must not run any more."""


def first_write(block: Block) -> int:
    """Return the index of the first instruction that may write outside a partition.

    If the partition fails before that instruction, it raises `Unbegun` from the error.
    The index is the number of instructions if none writes outside.
    """
    graph = block.graph
    made = {graph.root_of(value) for value in graph.outputs}
    writes = [update.instruction for update in block.updates]
    makers = enumerate(graph.instructions)
    writes += [index for index, step in makers if made & set(step.results)]
    return min(writes, default=len(graph.instructions))


def on_host(buffers: Sequence[Buffer]) -> Sequence[Array]:
    """Return buffers as arrays; none of them may be a state that a backend owns."""
    arrays = [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]
    assert len(arrays) == len(buffers), "states of other owners stay on the host"
    return arrays


class Delegate(Protocol):
    """A backend's run-time half.

    A backend overrides `pack` and `packed_format` if bundles can store weights that it
    has packed.

    Attributes:
        runs_on: the hardware that the backend computes on; `kvc recipes` groups recipes
            by it.
        needs: the library that the backend needs to run; None for no library.
        exports_folder: whether `export` makes a folder (`Packing.folder`).
    """

    runs_on: ClassVar[str] = ""
    needs: ClassVar[NeededLibrary | None] = None
    exports_folder: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        """Make the delegate for the resources of a program."""

    @staticmethod
    def check_library() -> None:
        """Check, for `load(..., reference=False)`, that the library can be used.

        Raises:
            LoadError: the library cannot be used.
        """
        return

    @staticmethod
    def devices() -> Sequence[FoundDevice]:
        """Return the devices that a user can select, in the order of their numbers.

        Most backends have none, and return an empty tuple.

        Raises:
            MissingLibrary: the library that lists devices is missing.
        """
        return ()

    @staticmethod
    def packed_format() -> str:
        """Return the `format` label of weights that the backend packs on this machine.

        The label has the form BACKEND:BUILD:FEATURES. It is "" if bundles do not store
        packed weights of this backend.

        Raises:
            MissingLibrary: a needed library cannot be used.
        """
        return ""

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the targets for which this machine can export files; often empty.

        The name of a target includes the version for which its files are valid.
        """
        return ()

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return the bytes of the file for a target; equal bundles give equal files.

        Args:
            target: the name of the target.
            handles: the handles of all partitions of this backend, by partition id.
        """
        raise AssertionError(f"{target} is not one of the backend's targets")

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition's code and payload, and return a handle with its data.

        The code is the program's block for the partition. The verifier has checked that
        the block is valid; `init` checks that the backend can run the block.

        Raises:
            FormatError: the payload is damaged, or the code is not for this backend.
        """

    @staticmethod
    def unread(
        program: Program, partition: Partition, constant: Callable[[int], Array]
    ) -> "Handle | None":
        """Return a handle that binds a partition without reading its data.

        What the handle prepares is not run: bound lists are made of it. None if the
        backend's steps are no native calls.

        Args:
            program: the program of the partition.
            partition: the partition; its code is checked already.
            constant: returns an array that stands for named data, by its id.

        Raises:
            MissingLibrary: the backend's library is missing.
        """
        return None

    def owner(
        self, groups: Sequence[Group], sizes: Mapping[str, int], initial: InitialValue
    ) -> Owner | None:
        """Return an owner of states of a new session; None to keep them on the host.

        A session stays open when `Program.release` closes this delegate. The returned
        owner must then also serve partitions of the backend's next delegate.

        Args:
            groups: the states that only this backend's partitions read and write.
            sizes: the sizes of the symbols that the session fixes.
            initial: returns the initial value of a state, by `State.initial`.

        Raises:
            OutOfMemory: there is not enough memory.
        """
        return None

    def pack(self, handles: Mapping[int, Handle]) -> Sequence[Packing]:
        """Pack all weights that the handles use, and return the packed weights.

        `handles` has the handles by partition id.
        """
        for handle in handles.values():
            handle.pack()
        return ()

    def packed(self) -> Mapping[str, int]:
        """Return the size in bytes of each packed weight in memory, by data name."""

    def close(self) -> None:
        """Release the resources that handles share; all handles are closed already."""
