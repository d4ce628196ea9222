"""Bind a method to the sizes and memory of a call, or find where that was done before.

To bind is to make each instruction a function over fixed memory. In: a method, the
inputs and states of a call, an execution context, what calls share. Out: a `Binding`,
and what the call lends to it. The context keeps bindings by the shapes that stay; the
lengths and addresses that a binding was made for are its version. If only those have
changed, only what depends on them is bound again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvc.runtime.arrays import borrowed, place_of
from kvc.runtime.binding.executor import Binding
from kvc.runtime.binding.frames import bind_graph
from kvc.runtime.binding.resources import ExecutionContext, Resources
from kvc.runtime.binding.values import Memory
from kvc.runtime.calls.callers import Loan, lend
from kvc.runtime.calls.entries import Entry
from kvc.runtime.calls.inputs import Inputs
from kvc.runtime.states.kind import Demand
from kvc.runtime.states.memory import StateMemory
from kvc.schema.frozen import frozen
from kvc.schema.model import Cursor


@frozen
class Binder:
    """Binds methods for the calls of one execution context.

    Attributes:
        cursors: of the program.
        resources: what calls share.
        context: of the call.
        states: of its session, None without one.
    """

    cursors: Sequence[Cursor]
    resources: Resources
    context: ExecutionContext
    states: StateMemory | None

    def bind(self, entry: Entry, inputs: Inputs) -> tuple[Binding, tuple[Loan, ...]]:
        """Return a method bound to this call's sizes and memory, and what is lent."""
        sizes: dict[str, int] | None = None
        loans: tuple[Loan, ...] = ()
        shape_of = inputs.shapes.__getitem__
        version: tuple[object, ...] = tuple(map(shape_of, entry.growing))
        if entry.slots and self.states is not None:
            version += entry.lengths(self.states)
        if entry.effects.borrowed:
            sizes = entry.solve(inputs, self.states)
            loans = lend(entry, inputs, sizes)
            version += tuple(place_of(loan.memory) for loan in loans)
        key = (entry.id, tuple(map(shape_of, entry.steady)), self.states)
        found = self.context.frame(key, version)
        if found is None:
            sizes = sizes or entry.solve(inputs, self.states)
            demand = entry.demand(sizes)
            if self.states is not None:
                self.states.check_growth(demand)
            # Out of the context's hands: one that breaks off is of no use any more.
            old = self.context.take(key)
            found = self._bind(entry, sizes, demand, loans, old)
            self.context.keep(key, found, version)
        return found, loans

    def _bind(
        self,
        entry: Entry,
        sizes: Mapping[str, int],
        demand: Demand,
        loans: Sequence[Loan],
        old: Binding | None,
    ) -> Binding:
        """Bind a method, or what depends on sizes and loans if it has been bound."""
        method = entry.method
        where = {loan.value: place_of(loan.memory) for loan in loans}
        moved = None
        if old is None or old.callers != where:
            moved = {loan.value: borrowed(loan.memory) for loan in loans}
        if old is None:
            memory = replace(self._memory(), callers=moved or {})
            code = self.resources.code(entry.id)
            frame = bind_graph(method.graph, sizes, memory, code)
        else:
            frame = old.frame.rebind(sizes, moved)
        fills = [
            (frame.inputs[index], leaf)
            for leaf, index in enumerate(range(len(frame.inputs)))
            if method.graph.inputs[index] not in where
        ]
        return Binding(frame, demand, fills, where)

    def _memory(self) -> Memory:
        """Return the memory of a method, except what is lent."""
        return Memory(
            scratch=self.context.scratch,
            constant=self.resources.constant,
            states=self.states.buffers if self.states is not None else (),
            workspace=self.context.workspace,
        )
