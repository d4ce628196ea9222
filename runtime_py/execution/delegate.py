"""The interface of a backend's run-time half, with numpy arrays for all tensors.

In: a partition of a program, and named data. Out: a `Handle` that prepares functions
for arrays at fixed addresses. A `Delegate` is made each time that a program's resources
are loaded, and makes a handle for each of its partitions. `prepare` does all
shape-dependent work before the run. A handle keeps its resources of an execution
context in the context's `Workspace`. None of this needs torch; bfloat16 arrays use
`ml_dtypes`.
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
    """A backend's partitions run by its reference implementation, which is slower."""


@frozen
class Options:
    """The settings of a program that a backend's delegate may need.

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


class SoftwareDevice(UserWarning):
    """The only device of a backend is emulated on the host, which is slow."""


Library = TypeVar("Library")
_warned: set[str] = set()


def library_unless(
    reference: bool | None, find: Callable[[], Library], backend: str
) -> Library | None:
    """Return a backend's library; None to run its reference, as `Options.reference`.

    If the library is missing, warn once in a process (`ReferenceUsed`).

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
    """Data in a backend's own packed form, which a bundle may hold ahead of time.

    Attributes:
        key: a description that is the same in every process.
        weight: the name of the packed weight, "" for the file of an export target.
        partitions: the ids of the program's delegates that use it, ascending.
        nbytes: its size.
        content: returns its bytes, as long as the backend is open.
        folder: whether the bytes are a zip archive of a folder that the target takes.
        remark: a note for the user who exports it, "" for none.
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
    """Resources that delegates keep in one execution context.

    One call at a time runs in a context, so no lock is needed.

    Attributes:
        arena: scratch memory of at least each partition's `workspace_nbytes`.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._owned: dict[object, Closeable] = {}

    def own(self, key: object, make: Callable[[], Owned]) -> Owned:
        """Return the resource under a key; make it on first need.

        Resources are closed with the context, in the reverse order of making.
        """
        found = self._owned.get(key)
        if found is None:
            found = self._owned[key] = make()
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """Close all kept resources."""
        while self._owned:
            self._owned.popitem()[1].close()


class Handle(Protocol):
    """A loaded partition; may be used from many threads.

    Attributes:
        runs_torch: whether it computes with torch's threads. Any other handle is
            assumed to have threads of its own, and torch gets a single thread in calls
            that run both.
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

        A function over state buffers of an owner may return before its work is done:
        the caller must call `synchronise` on the owner before any other access to the
        function's inputs and outputs.

        Args:
            inputs: arrays at fixed addresses, of any strides, including states. An
                array that the partition extends is passed with its spare room. A state
                that the backend owns is passed as its whole buffer.
            outputs: as `inputs`; the function writes them. One may alias an input.
            workspace: of the execution context in which the function will run.
            sizes: the sizes of the program's symbols in the prepared calls.
        """

    def pack(self) -> object:
        """Read and pack the weights, perhaps while another thread imports torch.

        Without this call, `prepare` packs them.
        """
        return None

    def close(self) -> None:
        """Release what the handle holds; no prepared function runs afterwards."""


def first_write(block: Block) -> int:
    """Return the first instruction that may write memory outside a partition.

    If a partition fails before it, the partition raises `Unbegun` from the error.
    """
    graph = block.graph
    made = {graph.root_of(value) for value in graph.outputs}
    writes = [update.instruction for update in block.updates]
    makers = enumerate(graph.instructions)
    writes += [index for index, step in makers if made & set(step.results)]
    return min(writes, default=len(graph.instructions))


def on_host(buffers: Sequence[Buffer]) -> Sequence[Array]:
    """Return the operands as arrays, for a partition whose backend owns no states."""
    arrays = [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]
    assert len(arrays) == len(buffers), "states of other owners stay on the host"
    return arrays


class Delegate(Protocol):
    """A backend's run-time half.

    A backend whose packed weights a bundle may hold overrides `pack` and
    `packed_format`.

    Attributes:
        runs_on: the hardware that it computes on, by which `kvc recipes` groups
            recipes.
        exports_folder: whether `export` makes a folder (`Packing.folder`).
    """

    runs_on: ClassVar[str] = ""
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
        """Return the selectable devices, by number; none for most backends.

        Raises:
            MissingLibrary: the library that lists devices is missing.
        """
        return ()

    @staticmethod
    def packed_format() -> str:
        """Return the `format` label of the weights that this machine packs.

        The form is BACKEND:BUILD:FEATURES, or "" if bundles do not hold packed weights.

        Raises:
            MissingLibrary: a needed library cannot be used.
        """
        return ""

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the targets that this machine can export files for; often none.

        Each is named with its version, which its files are valid for.
        """
        return ()

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return the file for a target; equal bundles give equal files.

        Args:
            target: the name of the target.
            handles: the handles of all partitions of this backend, by partition id.
        """
        raise AssertionError(f"{target} is not one of the backend's targets")

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition, its code and its payload, and take the data that it needs.

        The code is the partition's block of the program. The verifier has checked that
        it is valid; `init` checks that the backend can run it.

        Raises:
            FormatError: the payload is damaged, or the code is not for this backend.
        """

    def owner(
        self, groups: Sequence[Group], sizes: Mapping[str, int], initial: InitialValue
    ) -> Owner | None:
        """Return memory for states of a new session; None leaves them to the host.

        Sessions outlive `release`: the owner serves the partitions of each delegate of
        this backend, and stays in use after this delegate has been closed.

        Args:
            groups: the states that no other partition and no instruction reads or
                writes.
            sizes: the sizes of the symbols that the session fixes.
            initial: returns the initial value of a state, by `State.initial`.

        Raises:
            OutOfMemory: there is not enough memory.
        """
        return None

    def pack(self, handles: Mapping[int, Handle]) -> Sequence[Packing]:
        """Pack all weights that the handles use; `handles` are by partition id."""
        for handle in handles.values():
            handle.pack()
        return ()

    def packed(self) -> Mapping[str, int]:
        """Return the bytes that are kept in the backend's own form, by data name."""

    def close(self) -> None:
        """Release the resources that handles share; all handles have been closed."""
