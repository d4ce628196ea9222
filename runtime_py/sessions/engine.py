"""Run the calls of a loaded program; shared by the program and its sessions.

In: a method, arguments, the states of a session. Out: results nested as the method
declares, in memory that the caller owns. Many threads of one process may use an engine.
A call converts its inputs, takes an execution context, binds the method to the inputs
and the context's memory, and checks that the session has room. After the run, the call
adds its tokens to the position. `release` frees the resources that calls share; the
next call makes these resources again.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvc.runtime.adapters.loaded import PLAIN, Adapters
from kvc.runtime.calls.contexts import ContextPool, ExecutionContext, run_bound
from kvc.runtime.calls.entries import MethodEntry, make_entry
from kvc.runtime.calls.entry_checks import check_takes_rows, restart
from kvc.runtime.calls.inputs import Inputs, bind_inputs
from kvc.runtime.calls.pieces import count_excess, plan_pieces, run_pieces
from kvc.runtime.calls.transactions import run_on
from kvc.runtime.data import Mode, NamedBuffers, Residency, Slots, hold_blobs
from kvc.runtime.data.residency import describe_residency
from kvc.runtime.delegates.table import check_target
from kvc.runtime.execution.delegate import Packing
from kvc.runtime.execution.executor import RunProgress
from kvc.runtime.memory.arrays import Array, own_copy
from kvc.runtime.sessions.resources import LoadSettings, Resources
from kvc.runtime.sessions.sizes import count_rows, row_dims
from kvc.runtime.sessions.summary import program_summary
from kvc.runtime.states.divided import divide, find_backends
from kvc.runtime.states.host import HostMemory
from kvc.runtime.states.owner import Group, Owner, group_states
from kvc.runtime.states.row_adapters import RowAdapters, has_rows
from kvc.runtime.states.row_range import RowRange
from kvc.runtime.states.session_states import Copies, StateMemory
from kvc.schema.container import StoredBlobs
from kvc.schema.errors import Closed, Forked
from kvc.schema.model import Program
from kvc.schema.trees import unflatten


class Engine:
    """Runs the methods of one loaded program."""

    def __init__(
        self,
        path: str,
        digest: str,
        stored: StoredBlobs,
        mode: Mode,
        settings: LoadSettings,
    ) -> None:
        self.program: Program = stored.program
        self.path, self.digest = path, digest
        self._mode, self._settings = mode, settings
        self._stored, self._blobs = stored, hold_blobs(stored, mode)
        slots = Slots(self.program)
        self.data = NamedBuffers(self.program, self._blobs, slots)
        self._constants = NamedBuffers(self.program, self._blobs, slots, True)
        self.adapters = Adapters(
            path, self.program, slots, lambda: self.identity, self.check_open
        )
        states, methods = self.program.states, self.program.methods
        numbers = enumerate(methods)
        self.method_ids = {m.name: i for i, m in numbers if m.adapts is None}
        adapted = (i for i, m in enumerate(methods) if m.adapts is not None)
        self._adapted = {methods[i].adapts: i for i in adapted}
        self.groups = group_states(states, methods, row_dims(self.program))
        self.symbols = {symbol.name: symbol for symbol in self.program.symbols}
        self._bucketed = any(symbol.sizes for symbol in self.program.symbols)
        self._backends: Sequence[str] | None = None
        self._entries: dict[int, MethodEntry] = {}
        self._lock = threading.RLock()
        self._in_use = 0
        self._resources = self._new_resources()
        self.closed = False
        self._pid = os.getpid()

    @property
    def identity(self) -> str:
        """Return the identity of the program, computed when first requested."""
        return self._stored.identity

    def call(
        self,
        method: int,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        states: StateMemory | None,
        rows: RowRange | None = None,
    ) -> object:
        """Run a method of an open program and return its results.

        `rows` are the rows of the session that the call is for, None for all.

        Raises:
            CallMismatch, InputMismatch: the arguments do not match the compiled method.
            StateMismatch: the growing states do not have the lengths that the method
                takes.
            CacheOverflow: the call adds more tokens or rows than the session or a
                growing array has room for.
            CallTooLong: the call has more tokens than a ring buffer allows, and the
                method cannot be split into pieces.
            NotEncoded: the method of the role "encode" has not run.
            Poisoned: an earlier call failed and left states partly written.
            ExecutionError: an instruction failed.
            FileChanged, FormatError, FileProblem: a data file has changed, is damaged,
                or cannot be read.
            Closed: the program was closed during the call.
        """
        entry, inputs = self._take(method, args, kwargs, states, rows)
        if entry.tokens is not None:
            entry.tokens.check_all(inputs, entry.row_lengths)
        results = self._run_call(entry, inputs, states)
        if inputs.as_tensors:
            from kvc.runtime.execution.values import array_as_tensor

            results = [
                array_as_tensor(result) if isinstance(result, np.ndarray) else result
                for result in results
            ]
        return unflatten(entry.method.output_tree, results)

    def _take(
        self,
        method: int,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        states: StateMemory | None,
        rows: RowRange | None,
    ) -> tuple[MethodEntry, Inputs]:
        """Return the entry that runs a method, and the inputs of a call."""
        adapters = None if states is None else states.adapters
        if adapters is not None and adapters.any(rows):
            method = self._adapted.get(method, method)
        entry = self.entry(method)
        sizes: Mapping[str, int] = {} if states is None else states.sizes
        if rows is not None:
            check_takes_rows(entry)
            sizes = rows.sized(sizes)
        call, taken = (args, kwargs), (entry.signature, entry.row_lengths)
        return entry, bind_inputs(entry.method, *taken, call, sizes, rows)

    def prepare(
        self,
        method: int,
        args: Sequence[object],
        states: StateMemory,
        rows: RowRange | None,
    ) -> None:
        """Bind a method for arguments of these sizes; raises as `call`."""
        entry, inputs = self._take(method, args, {}, states, rows)
        resources, context = self._borrow(states)
        try:
            context.bind(entry, inputs, states)
        finally:
            resources.pool.put_back(context, states)

    def entry(self, method: int) -> MethodEntry:
        """Return the properties of a method that do not depend on a call."""
        found = self._entries.get(method)
        if found is None:
            found = make_entry(self.program, method, self.symbols, self.groups)
            self._entries[method] = found
        return found

    def _run_call(
        self, entry: MethodEntry, inputs: Inputs, states: StateMemory | None
    ) -> list[object]:
        """Run a method, split into pieces if ring buffers or buckets require it."""
        if states is None:
            return self._run_once(entry, inputs, None)
        states.check_usable()
        entry.check_encoded(inputs, states)
        if entry.restarts:
            restart(entry, inputs, states)
        limited = states.limited or self._bucketed
        count = count_excess(entry, inputs, states) if limited else 0
        if not count:
            return self._run_once(entry, inputs, states)
        plain = entry.method.adapts is None
        methods = enumerate(self.program.methods)
        entries = [self.entry(i) for i, m in methods if (m.adapts is None) == plain]
        pieces = plan_pieces(entry, count, states, entries)
        if not pieces:
            return self._run_once(entry, inputs, states)

        def run(piece: MethodEntry, given: Inputs) -> list[object]:
            return self._run_once(piece, given, states)

        return run_pieces(pieces, inputs, states, run)

    def _run_once(
        self, entry: MethodEntry, inputs: Inputs, states: StateMemory | None
    ) -> list[object]:
        resources, context = self._borrow(states)
        try:
            for file in self._blobs.shown:
                file.check_unchanged()
            binding, loans = context.bind(entry, inputs, states)
            demand = binding.demand
            if entry.row_lengths is not None and demand.advance is not None:
                read = entry.row_lengths.read(inputs, demand.advance)
                if inputs.rows is not None and states is not None:
                    total = len(states.counted[demand.cursor])
                    read = inputs.rows.spread(read, total)
                demand = replace(demand, row_lengths=read)
            if states is None or entry.only_reads:
                return run_bound(binding, inputs, loans, RunProgress())
            return run_on(entry, replace(binding, demand=demand), inputs, loans, states)
        finally:
            resources.pool.put_back(context, states)

    def open_states(
        self,
        sizes: Mapping[str, int],
        capacity: int | None,
        copies: Copies,
        like: StateMemory | None = None,
    ) -> StateMemory:
        """Return new memory for states; row 0 has the adapter of row 0 of `like`.

        Raises:
            OutOfMemory: there is not enough memory or address space.
            Closed, Forked: as `call`.
        """
        self.check_open()
        program = self.program
        numbers = range(max(1, len(program.cursors)))
        rows = tuple(count_rows(program, sizes, number) for number in numbers)
        adapters = None
        if has_rows(program):
            adapters = RowAdapters(self.adapters, [PLAIN] * rows[0])
        made = StateMemory(
            program.states, self.groups, self._own_states(sizes), sizes,
            program.cursors, capacity, rows, copies, adapters,
        )  # fmt: skip
        if adapters is not None and like is not None and like.adapters is not None:
            adapters.choose_row(made, 0, like.adapters.rows[0])
        return made

    def _own_states(self, sizes: Mapping[str, int]) -> Owner:
        """Allocate a new session's state memory, on the host or by backends."""
        initial = self._initial_value

        def on_host(groups: Sequence[Group]) -> Owner:
            return HostMemory.allocate(groups, sizes, initial)

        if self._backends is None and self.program.is_listed:
            self._backends = ()  # the host owns the states of lists
        elif self._backends is None:
            self._backends = find_backends(self.program, self.groups)
        if not any(self._backends):
            return on_host(self.groups)
        resources, context = self._borrow(None)

        def own(name: str, groups: Sequence[Group]) -> Owner | None:
            return resources.backend(name).owner(groups, sizes, initial)

        try:
            return divide(self.groups, self._backends, own, on_host)
        finally:
            resources.pool.put_back(context, None)

    def close_states(self, states: StateMemory) -> None:
        """Free the memory of a session's states."""
        states.close()
        if not self.forked:
            self._pool.forget_closed()

    def give_back_scratch(self) -> None:
        """Free the scratch memory of contexts that no call uses."""
        self._pool.give_back()

    def release(self) -> None:
        """Release the resources that calls share, except those that running calls use.

        Raises:
            Closed, Forked: as `call`.
        """
        self.check_open()
        with self._lock:
            self.check_open()
            old, self._resources = self._resources, self._new_resources()
        old.close(self._count_out)

    def pack(self, target: str | None) -> tuple[Packing, ...]:
        """Let delegates pack their weights; see `Program.pack`."""
        self.check_open()
        chosen = None if target is None else check_target(self.program, target)
        resources, context = self._borrow(None)
        try:
            for file in self._blobs.shown:
                file.check_unchanged()
            return resources.pack() if chosen is None else (resources.export(*chosen),)
        finally:
            resources.pool.put_back(context, None)

    def residency(self) -> Residency:
        """Return a report of the memory that the program's data occupies now.

        Raises:
            Closed, Forked: as `call`.
        """
        self.check_open()
        packed = self._resources.packed()
        return describe_residency(self.program, self._mode, self._blobs, packed)

    def summary(self) -> str:
        """Return the program's summary, as `Program.summary`.

        Raises:
            Closed, Forked: as `call`.
        """
        self.check_open()
        return program_summary(self._stored.files[0].path, self.program)

    @property
    def forked(self) -> bool:
        """Tell whether this process was forked from the one that opened the program."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Check that the program is open.

        Raises:
            Closed: the program is closed.
            Forked: the program was opened in another process.
        """
        self.check_process("program")
        if self.closed:
            raise Closed(kind="program")

    def check_process(self, kind: str) -> None:
        """Check that this process is the one that opened the program.

        Raises:
            Forked: this is a forked child, which lacks the parent's threads.
        """
        here = os.getpid()
        if here != self._pid:
            raise Forked(kind=kind, opened=self._pid, here=here)

    def close(self) -> None:
        """Refuse new calls, and release all resources when the last running call ends.

        In a forked child the call does nothing: a lock may have been held at the fork,
        and the exit of the child frees the child's memory.
        """
        if self.forked:
            self.closed = True
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self._blobs.refuse_users()
        self._resources.close(self._count_out)

    @property
    def _pool(self) -> ContextPool:
        return self._resources.pool

    def _new_resources(self) -> Resources:
        self._in_use += 1
        return Resources(self.path, self.program, self._constants, self._settings)

    def _count_out(self) -> None:
        """Note that one set of resources is freed; close the files after the last."""
        with self._lock:
            self._in_use -= 1
            last = not self._in_use
        if last:
            self._blobs.close()

    def _borrow(self, states: StateMemory | None) -> tuple[Resources, ExecutionContext]:
        """Take an execution context for one call.

        Args:
            states: the states of the call's session, None without a session.

        Returns:
            The shared resources of the program; and the context, which belongs to them.

        Raises:
            Closed: the program was closed during the call.
        """
        resources = self._resources
        while (context := resources.pool.take(states)) is None:
            self.check_open()  # still open: `release` replaced the resources
            resources = self._resources
        return resources, context

    def _initial_value(self, name: int) -> Array:
        """Return a copy of an initial value, so that states do not share its memory."""
        with self._constants.handle(name) as buffer:
            return own_copy(buffer.array())
