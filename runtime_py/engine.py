"""What runs the calls of a loaded program: shared by the program and its sessions.

In: a method, arguments, the states of a session. Out: results nested as the method
says, in memory of their own. It holds what all calls share: constants, delegates, the
pool of execution contexts. Used from many threads.
"""

import threading
from collections.abc import Mapping, Sequence

from kvc.runtime.arrays import Array, copy_into, own_copy
from kvc.runtime.contexts import ContextPool, ExecutionContext
from kvc.runtime.data import FreeableBuffer, MappedBlobs, NamedBuffers
from kvc.runtime.delegates.base import Handle, Options
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.executor import Frame
from kvc.runtime.frames import Code, bind_graph
from kvc.runtime.inputs import Inputs, take_inputs
from kvc.runtime.sizes import Signature
from kvc.runtime.states import StateMemory
from kvc.runtime.tokens import TokenInput, find_tokens
from kvc.runtime.values import Memory
from kvc.schema.container import BundleFile
from kvc.schema.errors import CacheOverflow, CallMismatch, Closed
from kvc.schema.model import Method, Program
from kvc.schema.trees import bind_call, unflatten


class Engine:
    """Runs methods of one bundle."""

    def __init__(self, bundle: BundleFile) -> None:
        self.program: Program = bundle.program
        self._path = bundle.path
        self._blobs = MappedBlobs(bundle, self.program.blobs)
        self.data = NamedBuffers(self.program, self._blobs)
        self.symbols = {symbol.name: symbol for symbol in self.program.symbols}
        self._signatures = [self._signature(method) for method in self.program.methods]
        self._tokens = [find_tokens(method) for method in self.program.methods]
        self._pool = ContextPool(self._make_context)
        self._lock = threading.RLock()
        self._constants: dict[int, tuple[FreeableBuffer, Array]] = {}
        self._delegates: dict[int, Handle] = {}
        self._code = Code(self._delegate)
        self.closed = False

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
            CacheOverflow: more tokens than the position leaves room for.
            ExecutionError: an instruction failed.
            Closed: the program has been closed.
        """
        self.check_open()
        inputs = self._take(method, args, kwargs)
        self._check_tokens(self._tokens[method], inputs, states)
        with self._pool.lease(states) as context:
            key = (method, inputs.shapes, states)
            frame = context.frame(
                key, lambda: self._bind(method, inputs, states, context)
            )
            for slot, array in zip(frame.inputs, inputs.arrays, strict=True):
                copy_into(slot, array)
            frame.run()
            results = [own_copy(array) for array in frame.outputs]
        tree = self.program.methods[method].output_tree
        if inputs.as_tensors:
            from kvc.runtime.tensors import array_as_tensor

            return unflatten(tree, [array_as_tensor(array) for array in results])
        return unflatten(tree, results)

    def open_states(self, sizes: Mapping[str, int]) -> StateMemory:
        """Return new memory for the states of a session."""
        self.check_open()
        return StateMemory(self.program.states, sizes, self._initial_value)

    def close_states(self, states: StateMemory) -> None:
        """Give the memory of a session's states back."""
        states.close()
        self._pool.forget_closed()

    def check_open(self) -> None:
        """Check that the program is open.

        Raises:
            Closed: it is not.
        """
        if self.closed:
            raise Closed(kind="program")

    def close(self) -> None:
        """Refuse new calls, and release everything once no call runs any more."""
        if not self.closed:
            self.closed = True
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
        self, method: int, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Inputs:
        declared = self.program.methods[method]
        try:
            leaves = bind_call(declared.input_tree, args, kwargs)
        except ValueError as error:
            raise CallMismatch(method=declared.name, reason=str(error)) from error
        return take_inputs(self._signatures[method], leaves)

    def _check_tokens(
        self, tokens: TokenInput | None, inputs: Inputs, states: StateMemory | None
    ) -> None:
        """Check the tokens of a prefill or decode before anything runs."""
        if tokens is None or len(inputs.shapes[0]) != 2:
            return  # a wrong rank is told when the shapes are solved
        tokens.check(inputs.arrays[0])
        if states is not None:
            self._check_room(inputs.shapes[0][1], states)

    def _check_room(self, count: int, states: StateMemory) -> None:
        """Check that so many tokens fit behind the position."""
        position = self.program.position
        if position is None or position.state is None or position.capacity is None:
            return
        for row, start in enumerate(states.arrays[position.state].reshape(-1).tolist()):
            if start + count > position.capacity:
                raise CacheOverflow(
                    row=row, start=start, count=count, capacity=position.capacity
                )

    def _bind(
        self,
        method: int,
        inputs: Inputs,
        states: StateMemory | None,
        context: ExecutionContext,
    ) -> Frame:
        fixed = states.sizes if states is not None else {}
        memory = Memory(
            scratch=context.scratch,
            constant=self._constant,
            states=states.arrays if states is not None else (),
            workspace=context.workspace,
        )
        sizes = self._signatures[method].solve(inputs.shapes, fixed)
        declared = self.program.methods[method]
        return bind_graph(declared.name, declared.graph, sizes, memory, self._code)

    def _signature(self, method: Method) -> Signature:
        types = [method.graph.values[i].type for i in method.graph.inputs]
        return Signature(method.name, method.input_names, types, self.symbols)

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
