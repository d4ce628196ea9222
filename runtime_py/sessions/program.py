"""`load` and `Program`: an open bundle, immutable, usable from many threads.

In: the path of a bundle. Out: its content, sessions, and calls of stateless methods.
Only headers, program and indices are read here; data is brought into memory when it is
first needed.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvc.runtime.data import FreeableBuffer, Mode, Residency
from kvc.runtime.data.modes import check_mode
from kvc.runtime.delegates.selecting import choose_body
from kvc.runtime.delegates.table import check_backends, check_device, delegate_of
from kvc.runtime.execution.delegate import Packing
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.engine import Engine
from kvc.runtime.sessions.methods import Callables
from kvc.runtime.sessions.resources import FindBackend
from kvc.runtime.sessions.session import Session
from kvc.runtime.sessions.sizes import whole_number
from kvc.runtime.states.memory import Copies
from kvc.runtime.threads import request_threads
from kvc.schema.container import BundleFile, StoredBlobs
from kvc.schema.errors import BadSetting, StateNeeded
from kvc.schema.left import needs_torch, why_torch
from kvc.schema.model import Method, State
from kvc.schema.torch_package import check_torch
from kvc.schema.types import Symbol

if TYPE_CHECKING:
    from torch import Tensor

    from kvc.runtime.sessions.prefixes import Prefix

Path = str | os.PathLike[str]


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
        path: of the bundle.
        mode: how its data comes into memory. `map`: only what is used, straight from
            the files, which must not change meanwhile. `read`: into memory of its own,
            a blob at a time as it is needed. `huge`: as `read`, in pages of 2 MiB.
        data_folders: where to look for data files that do not lie beside the bundle.
        reference: True to run what backends take by the reference implementation of
            their arithmetic; False to refuse to load where a backend's library is
            missing; None to use the library where there is one.
        threads: how many threads to compute with, the same for all programs of a
            process. Left out, what was asked for before, or one for each physical core
            that the process may use, but no more than OMP_NUM_THREADS.
        max_turns: the most turns that a `while_loop` of a method may run each time that
            it is reached, for bundles of strangers; more are `TooManyTurns`. Loops in
            one another multiply. Left out, no limit: Ctrl-C ends one that never ends.
        device: which device a backend that has several computes on, such as `vulkan:1`;
            `kvc devices` lists them. Left out, the backend chooses.
        backend: of a bundle for several recipes, the backend of the one to run. Left
            out, it is that of `device`, or the first whose library or device is here;
            a program that only acts as a device comes after all that is here.

    Raises:
        BadSetting: `path` is no path, there is no such mode, the folders are not a
            sequence, `reference` is neither a bool nor None, `threads` is not from 1 to
            the number of processors, `max_turns` is no number from 0, or `device` or
            `backend` is none that can be used for this bundle.
        ThreadsFixed: programs of this process compute with other threads already.
        FormatError: a file is damaged, or no bundle.
        LoadError: a file cannot be read or found, a backend or its library is missing,
            or every method needs torch, which is not installed.
    """
    checked = check_mode(mode)
    folders = _check_folders(data_folders)
    _check_reference(reference)
    turns = _check_turns(max_turns)
    request_threads(threads)
    bundle = BundleFile.open(path)
    try:
        bundle.choose(choose_body(bundle.program, backend, device, reference))
        check_backends(bundle.program, bundle.path, reference)
        devices = check_device(bundle.program, bundle.path, device)
        _check_some_run(bundle)
        stored = StoredBlobs.open(bundle, folders)
    except BaseException:
        bundle.close()
        raise
    return Program(
        bundle.path, bundle.digest, stored, checked, reference, turns, devices
    )


def _check_some_run(bundle: BundleFile) -> None:
    """Check that torch is here, unless there is a method that runs without it.

    Raises:
        MissingPackage: it is not.
    """
    methods = bundle.program.methods
    if methods and all(needs_torch(m.graph, m.graphs[1:]) for m in methods):
        check_torch(bundle.path, partial(_why_none, methods[0]))


def _why_none(method: Method) -> str:
    graph, *blocks = method.graphs
    return f"{why_torch(graph, blocks)}, in method {method.name}"


def _check_reference(reference: object) -> None:
    if not isinstance(reference, bool | None):
        expected = "True, False or None"
        raise BadSetting(name="reference", expected=expected, found=repr(reference))


def _check_turns(max_turns: int | None) -> int | None:
    if max_turns is None:
        return None
    turns = whole_number("max_turns", max_turns)
    if turns < 0:
        raise BadSetting(name="max_turns", expected="0 or more", found=turns)
    return turns


def _check_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return folders as they are; a single one would be taken apart into letters."""
    single = isinstance(folders, str | bytes | os.PathLike)
    if single or not isinstance(folders, Iterable):
        expected = "a sequence of folders"
        raise BadSetting(name="data_folders", expected=expected, found=repr(folders))
    return tuple(folders)


class Program(Callables):
    """A loaded bundle: its methods, named data, and sessions.

    Methods without state may be called on it directly. Any number of threads may use
    it.

    Attributes:
        path: of the bundle.
        digest: of the program, in hexadecimal; it covers all of the bundle.
        states: what the file declares, by name.
        data: named data; each request gives a `FreeableBuffer` of its own.
        provenance: who made it, of what, by which recipe; of several, the one that
            runs.
    """

    def __init__(
        self,
        path: str,
        digest: str,
        stored: StoredBlobs,
        mode: Mode,
        reference: bool | None = None,
        max_turns: int | None = None,
        devices: Mapping[str, int] = MappingProxyType({}),
        find_backend: FindBackend = delegate_of,
    ) -> None:
        self._engine = Engine(
            path, digest, stored, mode, reference, max_turns, devices, find_backend
        )
        declared = stored.program
        self.path = path
        self.digest = digest
        self.states: Mapping[str, State] = MappingProxyType(
            {state.name: state for state in declared.states}
        )
        self.data: Mapping[str, FreeableBuffer] = self._engine.data
        self.provenance = declared.provenance

    @property
    def identity(self) -> str:
        """Return what saved sessions belong to, in hexadecimal.

        It is of states, methods and what they compute with. Where blobs lie, what is
        packed beforehand, files, settings and provenance do not count.
        """
        return self._engine.identity

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        """Return the program's symbolic sizes by name."""
        return self._engine.symbols

    def session(
        self,
        capacity: int | Mapping[str, int] | None = None,
        transactional: bool = False,
        snapshots: int = 0,
        **sizes: int,
    ) -> Session:
        """Open a session with states of its own.

        Args:
            capacity: greatest position; left out, the greatest that was declared, since
                reserving costs nothing. Of a program with several caches of their own
                length, the sizes by name: {"encoder": 1500, "decoder": 448}.
            transactional: copy, before each call, what a call that fails could not put
                back, so that no failure poisons the session.
            snapshots: how many of the last calls `rewind` can undo in a session with
                states that calls may overwrite anywhere, such as recurrent ones. Each
                call copies such states, and this many copies are kept.
            sizes: for symbols that states use. Left out, each is its greatest, but
                `batch` is 1.

        Raises:
            UnknownName: no state uses such a symbol, or nothing limits a position.
            BadSetting: a size is out of its bounds.
            OutOfMemory: the system gives no address space.
            Closed, Forked: the program is closed, or belongs to another process.
        """
        self._engine.check_open()
        copies = _copies(transactional, snapshots)
        if isinstance(capacity, Mapping):
            sizes, capacity = _merged(sizes, capacity), None
        return Session.open(self._engine, sizes, capacity, copies)

    def restore(
        self,
        path: str | os.PathLike[str],
        transactional: bool = False,
        snapshots: int = 0,
    ) -> Session:
        """Open a session as `Session.save` left one; snapshots begin anew.

        Raises:
            BadSetting: `path` is no path, or `snapshots` no number of calls.
            BadSnapshot: the file is damaged, or of another program.
            FileProblem: the system cannot read it.
            OutOfMemory, Closed, Forked: as `session`.
        """
        from kvc.runtime.sessions.snapshots import Snapshot  # few programs restore

        self._engine.check_open()
        engine = self._engine
        known = (self.identity, self.digest)
        with Snapshot(path, engine.program, known) as snapshot:
            return Session.open(
                self._engine,
                snapshot.header.sizes,
                snapshot.wanted_capacity,
                _copies(transactional, snapshots),
                fill=snapshot.load,
            )

    def prefix(
        self,
        tokens: "Sequence[int] | Array | Tensor",
        capacity: int | Mapping[str, int] | None = None,
        **sizes: int,
    ) -> "Prefix":
        """Run a prompt once, for many sessions that begin with it.

        Args:
            tokens: at least one; int64 [batch, seq] where sessions have several rows.
                They are run by the methods of the roles `prefill` and `decode`.
            capacity: of the sessions, as `session`.
            sizes: of the sessions, as `session`.

        Raises:
            UnknownName: no method has the role `prefill`, or none `decode`.
            BadSetting: there are no tokens, or `tokens` holds something else.
            CacheOverflow: they do not fit.
            ExecutionError: as `Session.call`, and as `session`.
        """
        from kvc.runtime.sessions.prefixes import Prefix  # few programs have any

        return Prefix(self._engine, self.session(capacity, False, **sizes), tokens)

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method that touches no state.

        Raises:
            UnknownName: there is no such method.
            StateNeeded: it has state; open a session.
            ExecutionError: as `Session.call`.
        """
        index = self._find(name)
        self._engine.check_open()
        if needed := self._state_needed(index):
            raise StateNeeded(method=name, state=needed)
        return self._engine.call(index, args, kwargs, None)

    def _state_needed(self, index: int) -> str:
        """Return the name of a state that a method uses, or of its position, or ""."""
        method = self._engine.program.methods[index]
        for state in method.reads + method.writes:
            return self._engine.program.states[state].name
        reads = self._engine.entry(index).reads_cursor
        return self._engine.program.cursors[0].name if reads else ""

    def pack(self, target: str | None = None) -> tuple[Packing, ...]:
        """Do now what first calls would: check weights, have backends pack them.

        No method runs. Packed weights stay in memory, and the result's `content` valid,
        until `release` or `close`.

        Args:
            target: `BACKEND:TARGET`, to have that target's own file made in place of
                what this machine would use: the only one of the result.

        Raises:
            BadSetting: no backend of the bundle makes files for this target.
            ExecutionError: a backend's library refuses a partition.
            MissingPackage: a method needs torch, which is not installed.
            FileChanged, FormatError, FileProblem: data cannot be used any more.
            Closed, Forked: the program is closed, or belongs to another process.
        """
        return self._engine.pack(target)

    def residency(self) -> Residency:
        """Return what memory the data takes just now, blob by blob.

        Raises:
            Closed, Forked: the program is closed, or belongs to another process.
        """
        return self._engine.residency()

    def release(self) -> None:
        """Free all memory that no running call needs; the next call takes it again.

        That is what has been used of the data and is held by no `FreeableBuffer`, what
        delegates have packed, scratch memory, and what is bound to it. Sessions keep
        their states. Calls that run in other threads give theirs back when they end.

        The next use reads the data again and verifies it again: half a second for each
        GB where the system still has the file in memory, more where it has not.

        Raises:
            Closed, Forked: the program is closed, or belongs to another process.
        """
        self._engine.release()

    def close(self) -> None:
        """Release everything; calls that still run in other threads finish first."""
        self._engine.close()

    def summary(self) -> str:
        """Return a line for each method, and for states and data; `kvc dump` says more.

        `print(program)` prints it, and a notebook shows it.

        Raises:
            Closed, Forked: the program is closed, or belongs to another process.
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
    """Return the sizes of a session, which were given in two ways.

    Raises:
        BadSetting: one of them was given twice.
    """
    twice = sorted(sizes.keys() & capacity.keys())
    if twice:
        found = f"{', '.join(twice)} beside it"
        raise BadSetting(name="capacity", expected="each size once", found=found)
    return {**sizes, **capacity}


def _copies(transactional: bool, snapshots: object) -> Copies:
    """Return what a session is asked to copy.

    Raises:
        BadSetting: `snapshots` is no number of calls.
    """
    number = whole_number("snapshots", snapshots)
    if number < 0:
        raise BadSetting(name="snapshots", expected="0 or more", found=number)
    return Copies(transactional, number)
