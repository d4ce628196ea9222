"""`load` and `Program`: an open bundle, immutable, usable from many threads.

In: the path of a bundle. Out: the content of the bundle, sessions, and calls of
stateless methods. `load` reads only headers, programs and indices; data is read when it
is first needed.
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvc.runtime.data import FreeableBuffer, Mode, Residency
from kvc.runtime.data.modes import check_mode
from kvc.runtime.delegates.selecting import choose_body
from kvc.runtime.delegates.table import check_backends, check_device
from kvc.runtime.execution.delegate import Packing
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.engine import Engine
from kvc.runtime.sessions.load_checks import (
    Path,
    check_folders,
    check_reference,
    check_some_run,
    check_turns,
)
from kvc.runtime.sessions.methods import Callables
from kvc.runtime.sessions.resources import LoadSettings
from kvc.runtime.sessions.session import Session
from kvc.runtime.sessions.sizes import whole_number
from kvc.runtime.states.session_states import Copies
from kvc.runtime.threads import request_threads
from kvc.schema.container import BundleFile, StoredBlobs
from kvc.schema.errors import BadSetting, StateNeeded
from kvc.schema.model import State

if TYPE_CHECKING:
    from torch import Tensor

    from kvc.runtime.sessions.prefixes import Prefix


def load(
    path: Path,
    mode: Mode = "map",
    data_folders: Sequence[Path] = (),
    reference: bool | None = None,
    threads: int | None = None,
    max_turns: int | None = None,
    device: str | None = None,
    backend: str | None = None,
) -> "Program":
    """Open a bundle.

    Args:
        path: the path of the bundle.
        mode: how data comes into memory. `map`: map the files and read only the pages
            in use; the files must not change until the program is closed. `read`: copy
            each blob into private memory when it is first needed. `huge`: as `read`, in
            pages of 2 MiB. Programs of one process and mode hold equal blobs once.
        data_folders: folders to search for data files that are not in the bundle's
            folder.
        reference: True to run partitions by the reference implementation of a backend's
            arithmetic; False to refuse to load if a backend's library is missing; None
            to use the library if it is installed.
        threads: the number of compute threads, shared by all programs of a process.
            Default: the number requested by an earlier `load`; without one, the number
            of physical cores that the process can use, but at most OMP_NUM_THREADS.
        max_turns: the greatest number of iterations of a `while_loop` each time that
            control reaches the loop; further iterations raise `TooManyTurns`. Set it
            for untrusted bundles. The limits of nested loops multiply. Default: no
            limit; Ctrl-C ends an endless loop.
        device: the device to compute on, for a backend with several devices, such as
            `vulkan:1`; `kvc devices` lists the devices. Default: the backend selects a
            device.
        backend: for a bundle of several recipes, the backend whose program to run.
            Default: the backend of `device`; without a `device`, the first backend
            whose library or device is present, where emulated devices come last.

    Raises:
        BadSetting: `path` is not a path, `mode` is unknown, `data_folders` is not a
            sequence, `reference` is neither a bool nor None, `threads` is not from 1 to
            the number of processors, `max_turns` is negative or not an int, or the
            bundle cannot run on `device` or `backend`.
        ThreadsFixed: programs of this process already compute with a different number
            of threads.
        FormatError: a file is damaged, or is not a bundle.
        LoadError: a file cannot be read or found, a backend or its library is missing,
            or every method needs torch, which is not installed.
    """
    checked = check_mode(mode)
    folders = check_folders(data_folders)
    check_reference(reference)
    turns = check_turns(max_turns)
    request_threads(threads)
    bundle = BundleFile.open(path)
    try:
        bundle.choose(choose_body(bundle.program, backend, device, reference))
        if not bundle.program.is_listed or reference is not None:
            check_backends(bundle.program, bundle.path, reference)
        devices = check_device(bundle.program, bundle.path, device)
        check_some_run(bundle)
        stored = StoredBlobs.open(bundle, folders)
    except BaseException:
        bundle.close()
        raise
    settings = LoadSettings(reference, turns, devices)
    return Program(bundle.path, bundle.digest, stored, checked, settings)


class Program(Callables):
    """A loaded bundle: its methods, named data, and sessions.

    Methods without state can be called on the program directly. Any number of threads
    can use a program.

    Attributes:
        path: the path of the bundle.
        digest: the SHA-256 of the program in hexadecimal. The program contains the
            digests of all data, so the digest covers the whole bundle.
        states: the declared states by name.
        data: named data; each lookup returns a new `FreeableBuffer`.
        provenance: the model, recipe and versions that the program was compiled from;
            in a bundle of several programs, those of the program that runs.
        adapters: the loaded adapters by name; `load` and `free` change them.
    """

    def __init__(
        self,
        path: str,
        digest: str,
        stored: StoredBlobs,
        mode: Mode,
        settings: LoadSettings,
    ) -> None:
        self._engine = Engine(path, digest, stored, mode, settings)
        declared = stored.program
        self.path = path
        self.digest = digest
        self.states: Mapping[str, State] = MappingProxyType(
            {state.name: state for state in declared.states}
        )
        self.data: Mapping[str, FreeableBuffer] = self._engine.data
        self.provenance = declared.provenance
        self.adapters = self._engine.adapters

    def session(
        self,
        capacity: int | Mapping[str, int] | None = None,
        transactional: bool = False,
        snapshots: int = 0,
        adapter: str | Sequence[str | None] | None = None,
        scale: float | Sequence[float] | None = None,
        **sizes: int,
    ) -> Session:
        """Open a session: a new set of the program's states.

        Args:
            capacity: how many tokens a row of the session can hold. Default: the
                greatest number that the program declares, since reserved address space
                takes no memory. For a program with caches of several lengths, a size
                for each name, such as {"encoder": 1500, "decoder": 448}.
            transactional: whether to copy, before each call, the state bytes that could
                not be restored without a copy, so that no failure poisons the session.
            snapshots: how many of the last calls `rewind` can undo, for states that
                calls overwrite anywhere, such as recurrent states. Each call copies
                these states first, and the session stores the last `snapshots` copies.
            adapter: the name of a loaded adapter, for all rows or for each; None:
                `adapters.default`, in a sequence: none.
            scale: what multiplies what adapters add, for all rows or for each; None: 1,
                or that of `adapters.default`.
            sizes: the sizes of symbols in state shapes. Default: the greatest size of
                each symbol, but 1 for `batch`.

        Raises:
            UnknownName: no state uses a symbol in `sizes`, the program has no position
                that `capacity` could limit, or no such adapter is loaded.
            NoSlots: the program has no slots for adapters, and one is asked for.
            BadSetting: a size is out of its bounds, there is not one adapter and scale
                for each row, or an adapter cannot be scaled.
            OutOfMemory: the system provides no address space.
            Closed, Forked: the program is closed, or was opened by another process.
        """
        self._engine.check_open()
        copies = _copies(transactional, snapshots)
        if isinstance(capacity, Mapping):
            sizes, capacity = _merged(sizes, capacity), None
        usual, factor = self.adapters.default
        if adapter is None and usual is not None:
            adapter, scale = usual.name, factor if scale is None else scale
        if adapter is None and scale is not None:
            expected = "an adapter, which a scale is of"
            raise BadSetting(name="adapter", expected=expected, found=None)
        session = Session.open(self._engine, sizes, capacity, copies)
        try:
            session.use_adapter(adapter, 1.0 if scale is None else scale)
        except BaseException:
            session.close()
            raise
        return session

    def restore(
        self,
        path: str | os.PathLike[str],
        transactional: bool = False,
        snapshots: int = 0,
    ) -> Session:
        """Open a session from a file that `Session.save` wrote.

        Raises:
            BadSetting: `path` is not a path, or `snapshots` is not a count of calls.
            BadSnapshot: the file is damaged, or was saved by a different program.
            NotLoaded: a row has an adapter that is not loaded.
            FileProblem: the system cannot read the file.
            OutOfMemory, Closed, Forked: as `session`.
        """
        from kvc.runtime.sessions.snapshots import Snapshot  # few programs restore

        self._engine.check_open()
        engine = self._engine
        known = (self.identity, self.digest)
        with Snapshot(path, engine.program, known) as snapshot:
            session = Session.open(
                self._engine,
                snapshot.header.sizes,
                snapshot.wanted_capacity,
                _copies(transactional, snapshots),
                fill=snapshot.load,
            )
            session.attached = snapshot.header.attached
            return session

    def prefix(
        self,
        tokens: "Sequence[int] | Array | Tensor",
        capacity: int | Mapping[str, int] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        scale: float | Sequence[float] | None = None,
        **sizes: int,
    ) -> "Prefix":
        """Run a prompt once, for many sessions that begin with it.

        Args:
            tokens: the tokens of the prompt, at least one; int64 [batch, seq] for
                sessions of several rows. The methods of the roles `prefill` and
                `decode` run the tokens.
            capacity: the capacity of the sessions, as in `session`.
            adapter: the adapters of the sessions, as in `session`.
            scale: their scales, as in `session`.
            sizes: the sizes of the sessions, as in `session`.

        Raises:
            UnknownName: no method has the role `prefill`, or none the role `decode`.
            BadSetting: `tokens` is empty, or not an array of integers.
            CacheOverflow: the session has no room for the tokens.
            ExecutionError: as `Session.call` and `Program.session`.
        """
        from kvc.runtime.sessions.prefixes import Prefix  # few programs have any

        session = self.session(capacity, False, 0, adapter, scale, **sizes)
        return Prefix(self._engine, session, tokens)

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method that touches no state.

        Raises:
            UnknownName: the program has no method of that name.
            StateNeeded: the method uses states, so it can run only on a session.
            ExecutionError: as `Session.call`.
        """
        index = self._find(name)
        self._engine.check_open()
        if needed := self._state_needed(index):
            raise StateNeeded(method=name, state=needed)
        return self._engine.call(index, args, kwargs, None)

    def _state_needed(self, index: int) -> str:
        """Return the name of a state or cursor that a method uses, "" for none."""
        method = self._engine.program.methods[index]
        for state in method.reads + method.writes:
            return self._engine.program.states[state].name
        reads = self._engine.entry(index).reads_cursor
        return self._engine.program.cursors[0].name if reads else ""

    def pack(self, target: str | None = None) -> tuple[Packing, ...]:
        """Do the work that first calls would do: read, verify and pack weights.

        No method runs. The packed weights stay in memory until `release` or `close`.
        Until then, `content` of each returned `Packing` can be called.

        Args:
            target: `BACKEND:TARGET` to make only the file for that target; None for the
                packed weights that this machine uses.

        Raises:
            BadSetting: no backend of the bundle makes files for this target.
            ExecutionError: a backend's library refuses a partition.
            MissingPackage: a method needs torch, which is not installed.
            FileChanged, FormatError, FileProblem: a data file has changed, is damaged,
                or cannot be read.
            Closed, Forked: the program is closed, or was opened by another process.
        """
        return self._engine.pack(target)

    def residency(self) -> Residency:
        """Return a report of the memory that the program's data occupies now, by blob.

        Raises:
            Closed, Forked: the program is closed, or was opened by another process.
        """
        return self._engine.residency()

    def release(self) -> None:
        """Free all memory that no running call needs; the next call allocates it again.

        Data that another program of this process has in use stays in memory.

        The freed memory includes data without a `FreeableBuffer`, packed weights of
        delegates, scratch memory and execution contexts. Sessions keep their states. If
        a call is running in another thread, the memory of that call is freed when the
        call ends.

        The next use reads and verifies the data again: half a second for each GB if the
        file is still in the page cache, longer otherwise.

        Raises:
            Closed, Forked: the program is closed, or was opened by another process.
        """
        self._engine.release()

    def close(self) -> None:
        """Release all resources, after calls in other threads have finished."""
        self._engine.close()

    def summary(self) -> str:
        """Return a text with a line for each method, the states and the data.

        `print(program)` prints the summary, and a notebook shows it. `kvc dump` has
        more details.

        Raises:
            Closed, Forked: the program is closed, or was opened by another process.
        """
        return self._engine.summary()

    def __str__(self) -> str:
        return repr(self) if self._engine.closed else self.summary()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Show the summary in a notebook."""
        return {"text/plain": str(self)}

    def __repr__(self) -> str:
        closed = "closed" if self._engine.closed else ", ".join(self.methods)
        return f"<Program {self.path}: {closed}>"


def _merged(sizes: Mapping[str, int], capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a session, merged from `sizes` and `capacity`.

    Raises:
        BadSetting: `sizes` and `capacity` name the same size.
    """
    twice = sorted(sizes.keys() & capacity.keys())
    if twice:
        found = f"{', '.join(twice)} beside it"
        raise BadSetting(name="capacity", expected="each size once", found=found)
    return {**sizes, **capacity}


def _copies(transactional: bool, snapshots: object) -> Copies:
    """Return the session's settings for copies of states.

    Raises:
        BadSetting: `snapshots` is not a count of calls.
    """
    number = whole_number("snapshots", snapshots)
    if number < 0:
        raise BadSetting(name="snapshots", expected="0 or more", found=number)
    return Copies(transactional, number)
