"""What runs the calls of a loaded program: shared by the program and its sessions.

In: a method, arguments, the states of a session. Out: results nested as the method
says, in memory of their own. It holds what all calls share: constants, delegates, the
pool of execution contexts. Used from many threads, in one process. A call takes its
inputs, binds them (or finds the frame that is bound to them, or binds again what in it
depends on lengths that have changed), checks that the session has room, runs, and only
then counts what it has added.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvc.runtime.arrays import Array, borrowed, copy_into, own_copy
from kvc.runtime.bindings import Binding
from kvc.runtime.callers import Loan, lend
from kvc.runtime.contexts import ContextPool, ExecutionContext
from kvc.runtime.data import FreeableBuffer, MappedBlobs, NamedBuffers
from kvc.runtime.delegates.base import Handle, Options
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.entries import Demand, Entry, check_growth, make_entry
from kvc.runtime.executor import Progress
from kvc.runtime.frames import Code, bind_graph, rebind_graph
from kvc.runtime.inputs import Inputs, take_inputs
from kvc.runtime.positions import count_rows, fill_position
from kvc.runtime.states import StateMemory
from kvc.runtime.transactions import Transaction, check_usable
from kvc.runtime.values import Memory
from kvc.schema.container import BundleFile
from kvc.schema.errors import CallMismatch, Closed, Forked
from kvc.schema.model import Program
from kvc.schema.trees import bind_call, unflatten


class Engine:
    """Runs methods of one bundle."""

    def __init__(self, bundle: BundleFile) -> None:
        self.program: Program = bundle.program
        self.digest = bundle.digest
        self._path = bundle.path
        self._blobs = MappedBlobs(bundle, self.program.blobs)
        self.data = NamedBuffers(self.program, self._blobs)
        self.symbols = {symbol.name: symbol for symbol in self.program.symbols}
        self._entries: dict[int, Entry] = {}
        self._pool = ContextPool(self._make_context)
        self._lock = threading.RLock()
        self._constants: dict[int, tuple[FreeableBuffer, Array]] = {}
        self._delegates: dict[int, Handle] = {}
        self._code = Code(self._delegate)
        self.closed = False
        self._pid = os.getpid()

    def call(
        self,
        method: int,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        states: StateMemory | None,
    ) -> object:
        """Run a method and return its results.

        Raises:
            CallMismatch, InputMismatch: the arguments are not what was compiled for.
            StateMismatch: the lengths of states that grow are not those it takes.
            CacheOverflow: more tokens or rows than there is room for.
            Poisoned: an earlier call left states half written.
            ExecutionError: an instruction failed.
            Closed, Forked: the program is closed, or belongs to another process.
        """
        self.check_open()
        entry = self.entry(method)
        inputs = self._take(entry, args, kwargs)
        entry.check_tokens(inputs)
        if states is not None:
            check_usable(states)
        with self._pool.lease(states) as context:
            binding, loans = self._binding(entry, inputs, states, context)
            if states is None or entry.only_reads:
                results = _run(binding, inputs, loans, Progress())
            else:
                results = self._run_on(entry, binding, inputs, loans, states)
        return _nest(entry.method.output_tree, results, inputs.as_tensors)

    def entry(self, method: int) -> Entry:
        """Return what is known of a method before any call."""
        found = self._entries.get(method)
        if found is None:
            found = make_entry(self.program, method, self.symbols)
            self._entries[method] = found
        return found

    def _run_on(
        self,
        entry: Entry,
        binding: Binding,
        inputs: Inputs,
        loans: Sequence[Loan],
        states: StateMemory,
    ) -> list[object]:
        """Run a bound method on a session: all of it, or as if it had not run."""
        position = self.program.position
        transaction = Transaction(entry, binding.demand, states, position)
        progress = Progress()
        try:
            if binding.position is not None:
                starts = transaction.starts or (0,)
                fill_position(binding.position, starts, entry.method, position)
            results = _run(binding, inputs, loans, progress)
            transaction.commit()
        except BaseException as error:
            transaction.roll_back(progress, error)
            raise
        return results

    def open_states(
        self, sizes: Mapping[str, int], capacity: int | None, transactional: bool
    ) -> StateMemory:
        """Return new memory for the states of a session.

        Raises:
            OutOfMemory: the system gives no address space.
            Closed, Forked: as `call`.
        """
        self.check_open()
        return StateMemory(
            self.program.states,
            sizes,
            self._initial_value,
            capacity=capacity,
            rows=count_rows(self.program, sizes),
            transactional=transactional,
        )

    def close_states(self, states: StateMemory) -> None:
        """Give the memory of a session's states back."""
        states.close()
        if not self.forked:
            self._pool.forget_closed()

    def give_back_scratch(self) -> None:
        """Give the scratch pages that no call uses back."""
        self._pool.give_back()

    @property
    def forked(self) -> bool:
        """Tell whether this is a child of the process that opened the program."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Check that the program is open.

        Raises:
            Closed: it is not.
            Forked: it is, but in another process.
        """
        self.check_process("program")
        if self.closed:
            raise Closed(kind="program")

    def check_process(self, kind: str) -> None:
        """Check that no fork lies between opening and now.

        Raises:
            Forked: one does: locks and threads of the parent are not here.
        """
        here = os.getpid()
        if here != self._pid:
            raise Forked(kind=kind, opened=self._pid, here=here)

    def close(self) -> None:
        """Refuse new calls, and release everything once no call runs any more.

        In a child of the process that opened it nothing is released: the child's end
        does so, and a lock may have been held when it was forked.
        """
        if not self.closed:
            self.closed = True
            if not self.forked:
                self._pool.close(self._release)

    def _release(self) -> None:
        with self._lock:
            for handle in self._delegates.values():
                handle.close()
            for buffer, _ in self._constants.values():
                buffer.free()
            self._delegates.clear()
            self._constants.clear()
        self._blobs.close()

    def _take(
        self, entry: Entry, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Inputs:
        method = entry.method
        try:
            leaves = bind_call(method.input_tree, args, kwargs)
        except ValueError as error:
            raise CallMismatch(method=method.name, reason=str(error)) from error
        return take_inputs(entry.signature, leaves)

    def _binding(
        self,
        entry: Entry,
        inputs: Inputs,
        states: StateMemory | None,
        context: ExecutionContext,
    ) -> tuple[Binding, tuple[Loan, ...]]:
        """Return a method bound to this call's sizes and memory, and what is lent."""
        sizes: dict[str, int] | None = None
        loans: tuple[Loan, ...] = ()
        version: tuple[object, ...] = tuple(inputs.shapes[i] for i in entry.growing)
        if entry.slots and states is not None:
            version += entry.lengths(states)
        if entry.effects.borrowed:
            sizes = entry.solve(inputs, states)
            loans = lend(entry, inputs, sizes)
            version += tuple(loan.where() for loan in loans)
        steady = tuple(inputs.shapes[i] for i in entry.steady)
        key = (entry.id, steady, states)
        found = context.frame(key, version)
        if found is None:
            sizes = sizes or entry.solve(inputs, states)
            demand = entry.demand(sizes)
            if states is not None:
                check_growth(demand, states, self.program.position)
            # Out of the context's hands: one that breaks off is of no use any more.
            old = context.take(key)
            memory = self._memory(states, context)
            found = self._bind(entry, sizes, demand, memory, loans, old)
            context.keep(key, found, version)
        return found, loans

    def _memory(self, states: StateMemory | None, context: ExecutionContext) -> Memory:
        """Return the memory of a method, except what is lent."""
        return Memory(
            scratch=context.scratch,
            constant=self._constant,
            states=states.arrays if states is not None else (),
            workspace=context.workspace,
        )

    def _bind(
        self,
        entry: Entry,
        sizes: Mapping[str, int],
        demand: Demand,
        memory: Memory,
        loans: Sequence[Loan],
        old: Binding | None,
    ) -> Binding:
        """Bind a method, or what depends on sizes and loans if it has been bound."""
        method = entry.method
        where = {loan.value: loan.where() for loan in loans}
        moved = None
        if old is None or old.callers != where:
            moved = {loan.value: borrowed(loan.memory) for loan in loans}
        if old is None:
            memory = replace(memory, callers=moved or {})
            frame = bind_graph(method.name, method.graph, sizes, memory, self._code)
        else:
            frame = rebind_graph(old.frame, sizes, moved)
        fills = [
            (frame.inputs[index], leaf)
            for leaf, index in enumerate(entry.passed)
            if method.graph.inputs[index] not in where
        ]
        fed = None if entry.position is None else frame.inputs[entry.position]
        return Binding(frame, demand, fills, fed, where)

    def _make_context(self) -> ExecutionContext:
        scratch = (method.graph.scratch_nbytes for method in self.program.methods)
        workspace = (part.workspace_nbytes for part in self.program.delegates)
        return ExecutionContext(max(scratch, default=0), max(workspace, default=0))

    def _constant(self, name: int) -> Array:
        """Return named data that stays mapped until the program is closed."""
        with self._lock:
            if name not in self._constants:
                buffer = self.data.handle(name)
                self._constants[name] = (buffer, buffer.private_array())
            return self._constants[name][1]

    def _initial_value(self, name: int) -> Array:
        with self.data.handle(name) as buffer:
            return own_copy(buffer.array())

    def _delegate(self, index: int) -> Handle:
        with self._lock:
            if index not in self._delegates:
                part = self.program.delegates[index]
                options = Options(self._path, self.program)
                backend = DELEGATES[part.backend]()
                self._delegates[index] = backend.init(part, self.data, options)
            return self._delegates[index]


def _run(
    binding: Binding, inputs: Inputs, loans: Sequence[Loan], progress: Progress
) -> list[object]:
    """Fill the inputs, run, and return results in memory of their own."""
    for slot, leaf in binding.fills:
        copy_into(slot, inputs.arrays[leaf])
    binding.frame.run(progress)
    if not loans:
        return [own_copy(array) for array in binding.frame.outputs]
    given = {output: loan.growing for loan in loans for output in loan.outputs}
    results: list[object] = [
        given[i] if i in given else own_copy(array)
        for i, array in enumerate(binding.frame.outputs)
    ]
    for loan in loans:
        loan.finish()
    return results


def _nest(tree: str, results: list[object], as_tensors: bool) -> object:
    """Return results nested as a method says, arrays as tensors where wanted."""
    if as_tensors:
        from kvc.runtime.tensors import array_as_tensor

        results = [
            array_as_tensor(result) if isinstance(result, np.ndarray) else result
            for result in results
        ]
    return unflatten(tree, results)
