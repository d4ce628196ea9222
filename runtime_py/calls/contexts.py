"""Execution contexts: scratch memory, and the methods that are bound to it.

Binding turns each instruction into a function over fixed memory. In: a method, the
inputs and states of a call. Out: a `Binding`, and the loans of the call. A context
stores some bindings, keyed by the input shapes that do not follow growing states, and
drops the binding that was least recently used. Each binding has a version: the lengths
of growing states and the addresses of callers' arrays that it was made for. If only the
version has changed, only the instructions that depend on those lengths and addresses
are bound again.

If native steps alone use the states, one binding serves all sessions of equal sizes,
and each range of as many rows: it is moved to the states of the call
(`execution/moving.py`). Other bindings belong to the states of one session.

A call gets a context that no other call uses, preferably the context that served the
call's session last. A closed pool returns no contexts, and reports when the last
running call has ended.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from kvc.runtime.calls.callers import Loan, lend
from kvc.runtime.calls.entries import MethodEntry
from kvc.runtime.calls.inputs import Inputs
from kvc.runtime.execution.code import Code, may_move
from kvc.runtime.execution.delegate import Workspace
from kvc.runtime.execution.executor import Binding, Frame, RunProgress
from kvc.runtime.execution.frames import bind_graph
from kvc.runtime.execution.list_frames import ListBinder, ListFrame, ListMemory
from kvc.runtime.execution.moving import mover_of
from kvc.runtime.execution.recording import RECORDERS
from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, borrowed, copy_into, own_copy, place_of
from kvc.runtime.states.addresses import StateAddresses
from kvc.runtime.states.kind import Demand
from kvc.runtime.states.owner import Buffer
from kvc.runtime.states.row_range import RowRange
from kvc.runtime.states.session_states import StateMemory

FRAMES_KEPT = 48
Version = tuple[object, ...]  # the lengths and addresses that a frame is bound to
# The method, input shapes, the only session (None: any), sizes or rows of its states
FrameKey = tuple[int, tuple[tuple[int, ...], ...], StateMemory | None, object]


class Shared(Protocol):
    """The resources of a program that its execution contexts share to bind methods."""

    def constant(self, name: int) -> Array:
        """Return constant `name`, in memory until the resources are freed."""

    def code(self, method: int) -> Code:
        """Return the bindable code of a method."""

    def lists(self, method: int) -> ListBinder | None:
        """Return what binds the lists of a method; None if it has none to be used."""


class ExecutionContext:
    """Scratch memory and bound frames, used by one running call at a time."""

    def __init__(
        self, shared: Shared, scratch_nbytes: int, workspace_nbytes: int
    ) -> None:
        self._shared = shared
        self.scratch = Arena(scratch_nbytes)
        self.workspace = Workspace(Arena(workspace_nbytes))
        self.listed: Arena | None = None  # scratch memory of bound lists
        self.served: StateMemory | None = None
        self._frames: OrderedDict[FrameKey, tuple[Version, Binding]] = OrderedDict()
        self._moving: dict[int, bool] = {}  # by method: whether bindings are moved
        self._stood: tuple[object, Sequence[Array]] | None = None

    def bind(
        self, entry: MethodEntry, inputs: Inputs, states: StateMemory | None
    ) -> tuple[Binding, tuple[Loan, ...]]:
        """Return a method bound to a call's sizes and memory, and the call's loans."""
        if states is not None and self._moves(entry, states):
            found = self._bind_moving(entry, inputs, states)
            if found is not None:
                return found, ()
        sizes: dict[str, int] | None = None
        loans: tuple[Loan, ...] = ()
        shape_of = inputs.shapes.__getitem__
        version: Version = tuple(map(shape_of, entry.growing))
        if entry.slots and states is not None:
            version += entry.lengths(states)
        if entry.effects.borrowed:
            sizes = entry.solve(inputs, states)
            loans = lend(entry, inputs, sizes)
            version += tuple(place_of(loan.memory) for loan in loans)
        rows = inputs.rows
        which = None if rows is None else (rows.first, rows.count)
        steady = tuple(map(shape_of, entry.steady))
        key = (entry.id, steady, states, (which, _recorded()))
        found = self.frame(key, version)
        if found is None:
            sizes = sizes or entry.solve(inputs, states)
            demand = entry.demand(sizes)
            if states is not None:
                states.check_growth(demand)
            # Removed first: a binding whose rebinding failed must not be used again.
            old = self.take(key)
            buffers: Sequence[Buffer] = () if states is None else states.buffers
            if rows is not None:
                buffers = rows.parts(buffers)
            found = self._bind(entry, sizes, demand, loans, buffers, old)
            self.keep(key, found, version)
        return found, loans

    def _moves(self, entry: MethodEntry, states: StateMemory) -> bool:
        """Tell whether a binding of a method may serve several sessions."""
        if entry.slots or entry.effects.borrowed or entry.growing:
            return False
        if states.places is None:
            return False
        if entry.id not in self._moving:
            if self._shared.lists(entry.id) is not None:
                return True
            code = self._shared.code(entry.id)
            try:
                self._moving[entry.id] = may_move(entry.method.graph, code)
            except Exception:  # binding meets it again, and tells where
                return False
        return self._moving[entry.id]

    def _bind_moving(
        self, entry: MethodEntry, inputs: Inputs, states: StateMemory
    ) -> Binding | None:
        """Return a binding that is moved to the states; None if it cannot be moved."""
        rows, places = inputs.rows, states.places
        assert places is not None
        count = None if rows is None else rows.count
        key = (entry.id, inputs.shapes, None, (places.sizes, count, _recorded()))
        found = self.frame(key)
        if found is None:
            sizes = entry.solve(inputs, states)
            demand = entry.demand(sizes)
            states.check_growth(demand)
            stand_in = self._stand_in(places, rows)
            found = self._bind(entry, sizes, demand, (), stand_in, None)
            frame = found.frame
            beside = (*frame.inputs, *frame.outputs)
            mover = mover_of(frame.functions, beside, stand_in)
            if mover is None:
                self._moving[entry.id] = False
                return None
            found = replace(found, mover=mover)
            self.keep(key, found)
        assert found.mover is not None
        found.mover.move(*places.at(rows))
        return found

    def _stand_in(
        self, places: StateAddresses, rows: RowRange | None
    ) -> Sequence[Array]:
        """Return what stands in for states; frames of equal sizes share its addresses.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        if self._stood is None or self._stood[0] != places.sizes:
            self._stood = places.sizes, places.stand_in()
        whole = self._stood[1]
        if rows is None:
            return whole
        both = zip(rows.states, whole, strict=True)
        return [one[: rows.count] if own else one for own, one in both]

    def _bind(
        self,
        entry: MethodEntry,
        sizes: Mapping[str, int],
        demand: Demand,
        loans: Sequence[Loan],
        buffers: Sequence[Buffer],
        old: Binding | None,
    ) -> Binding:
        """Bind a method; if `old` is given, bind only what sizes and loans change."""
        if not loans and (listed := self._bind_list(entry, sizes, buffers)) is not None:
            fills = [(slot, leaf) for leaf, slot in enumerate(listed.inputs)]
            return Binding(listed, demand, fills, {})
        method = entry.method
        where = {loan.value: place_of(loan.memory) for loan in loans}
        moved = None
        if old is None or old.callers != where:
            moved = {loan.value: borrowed(loan.memory) for loan in loans}
        if old is None or not isinstance(old.frame, Frame):
            frame = self._bind_graph(entry, sizes, buffers, moved or {})
        else:
            frame = old.frame.rebind(sizes, moved)
        fills = [
            (frame.inputs[index], leaf)
            for leaf, index in enumerate(range(len(frame.inputs)))
            if method.graph.inputs[index] not in where
        ]
        return Binding(frame, demand, fills, where)

    def _bind_graph(
        self,
        entry: MethodEntry,
        sizes: Mapping[str, int],
        buffers: Sequence[Buffer],
        callers: Mapping[int, Array],
    ) -> Frame:
        memory = GraphMemory(
            scratch=self.scratch,
            constant=self._shared.constant,
            states=buffers,
            workspace=self.workspace,
            callers=callers,
        )
        return bind_graph(
            entry.method.graph, sizes, memory, self._shared.code(entry.id)
        )

    def _bind_list(
        self, entry: MethodEntry, sizes: Mapping[str, int], buffers: Sequence[Buffer]
    ) -> ListFrame | None:
        """Return the frame of a bound list; None if no list includes the sizes."""
        lists = None if _recorded() else self._shared.lists(entry.id)
        arrays = [held for held in buffers if isinstance(held, np.ndarray)]
        if lists is None or len(arrays) < len(buffers):
            return None
        symbols = entry.symbols.items()
        given = {name: sizes.get(name, symbol.lower) for name, symbol in symbols}
        numbers = np.array(list(given.values()), np.int64)
        chosen = lists.bounds.find(entry.id, numbers)
        if chosen is None:
            return None
        if self.listed is None:
            self.listed = Arena(lists.bounds.scratch_nbytes)
        frame = lists.bind(
            chosen,
            numbers,
            ListMemory(self.listed, self._shared.constant, arrays),
            len(entry.method.graph.instructions) - 1,
            partial(self._bind_graph, entry, sizes, buffers, {}),
        )
        if frame is not None:
            graph = entry.method.graph
            types = [graph.values[i].type for i in (*graph.inputs, *graph.outputs)]
            ends = [(kind.dtype, kind.shape(given)) for kind in types]
            lists.check_ends(chosen, frame, ends)
        return frame

    def frame(self, key: FrameKey, version: Version = ()) -> Binding | None:
        """Return the binding under a key, None unless it has the given version."""
        found = self._frames.get(key)
        if found is None or found[0] != version:
            return None
        self._frames.move_to_end(key)
        return found[1]

    def take(self, key: FrameKey) -> Binding | None:
        """Remove and return the binding under a key, None if there is none."""
        found = self._frames.pop(key, None)
        return None if found is None else found[1]

    def keep(self, key: FrameKey, binding: Binding, version: Version = ()) -> None:
        """Store a binding under its key."""
        self._frames[key] = (version, binding)
        if len(self._frames) > FRAMES_KEPT:
            self._frames.popitem(last=False)

    def give_back(self) -> None:
        """Return the pages of scratch memory to the system."""
        self.scratch.discard()
        self.workspace.arena.discard()
        if self.listed is not None:
            self.listed.discard()

    def close(self) -> None:
        """Drop all bindings, and close the resources of delegates in the context."""
        self._frames.clear()
        self.workspace.close()

    def forget_closed(self) -> None:
        """Drop bindings whose states belong to closed sessions."""
        for key in list(self._frames):
            if key[2] is not None and key[2].closed:
                self._frames.pop(key, None)
        if self.served is not None and self.served.closed:
            self.served = None


def _recorded() -> bool:
    """Tell whether steps are recorded, by instruction, which lists do not know."""
    return bool(RECORDERS.get())


class ContextPool:
    """The idle execution contexts of a program; safe to use from many threads."""

    def __init__(self, make: Callable[[], ExecutionContext]) -> None:
        self._make = make
        # Re-entrant: garbage collection may close a session at any point.
        self._lock = threading.RLock()
        self._idle: list[ExecutionContext] = []
        self._leased = 0
        self._closed = False
        self._when_drained: Callable[[], None] | None = None

    def take(self, states: StateMemory | None) -> ExecutionContext | None:
        """Take a context out of the pool for one call; None if the pool is closed."""
        with self._lock:
            if self._closed:
                return None
            for context in self._idle:
                if context.served is states:
                    self._idle.remove(context)
                    break
            else:
                context = self._idle.pop() if self._idle else self._make()
            self._leased += 1
            return context

    def put_back(self, context: ExecutionContext, states: StateMemory | None) -> None:
        """Return a context to the pool after a call on the states of a session."""
        context.served = states
        with self._lock:
            if not self._closed:
                self._leased -= 1
                context.forget_closed()
                self._idle.append(context)
                return
        context.close()  # before the last lease ends, and delegates are closed
        with self._lock:
            self._leased -= 1
        self._finish()

    def forget_closed(self) -> None:
        """Drop bindings to closed sessions; a context in use does so on its return."""
        with self._lock:
            for context in self._idle:
                context.forget_closed()

    def give_back(self) -> None:
        """Return the scratch pages of idle contexts to the system."""
        with self._lock:
            for context in self._idle:
                context.give_back()

    def close(self, when_drained: Callable[[], None]) -> None:
        """Close all contexts, and call `when_drained` once no call runs any more."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed = True
            self._when_drained = when_drained
            self._leased += 1  # holds off `when_drained` until idle contexts are closed
        for context in idle:
            context.close()
        with self._lock:
            self._leased -= 1
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._leased or self._when_drained is None:
                return
            action, self._when_drained = self._when_drained, None
        action()


def run_bound(
    binding: Binding, inputs: Inputs, loans: Sequence[Loan], progress: RunProgress
) -> list[object]:
    """Fill a binding's inputs, run it, and return results in the caller's memory."""
    for slot, leaf in binding.fills:
        copy_into(slot, inputs.arrays[leaf])
    binding.frame.run(progress)
    if not loans:
        return list(map(own_copy, binding.frame.outputs))
    given = {output: loan.growing for loan in loans for output in loan.outputs}
    results: list[object] = [
        given[i] if i in given else own_copy(array)
        for i, array in enumerate(binding.frame.outputs)
    ]
    for loan in loans:
        loan.finish()
    return results
