"""Sessions: one conversation's states, and the calls that read and write them.

In: an engine, the sizes that the session fixes. Out: results of calls; the states
stay here from one call to the next. A session belongs to one thread at a time.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from kvc.runtime.arrays import Array, own_copy
from kvc.runtime.engine import Engine
from kvc.runtime.methods import MethodTable
from kvc.runtime.states import StateMemory
from kvc.schema.errors import (
    BadSetting,
    Busy,
    Closed,
    NoPosition,
    UnknownName,
    listing,
)
from kvc.schema.model import Method, PositionKind, Program
from kvc.schema.types import Affine, Symbol


class StateViews(Mapping[str, Array]):
    """`session.state`: a read-only look at each state, as it is now and will be."""

    def __init__(self, program: Program, states: StateMemory, owner: "Session") -> None:
        self._ids = {state.name: i for i, state in enumerate(program.states)}
        self._states = states
        self._owner = owner  # a session that is collected gives its memory back

    def __getitem__(self, name: str) -> Array:
        """Return a read-only array over a state's memory.

        Raises:
            UnknownName: the program has no such state.
            Closed: the session has been closed.
        """
        if name not in self._ids:
            known = listing(list(self._ids))
            raise UnknownName(kind="state", name=name, known=known)
        if self._states.closed:
            raise Closed(kind="session")
        view = self._states.arrays[self._ids[name]].view()
        view.flags.writeable = False
        return view

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class Session:
    """Owns the memory of a program's states; weights are shared with all sessions."""

    def __init__(self, engine: Engine, sizes: Mapping[str, int]) -> None:
        self._engine = engine
        self._table = MethodTable(engine)
        self._states = engine.open_states(choose_sizes(engine.program, sizes))
        self._lock = threading.Lock()
        self._running = ""
        # Runs once: at close, or when the session is collected.
        self._closer = weakref.finalize(self, engine.close_states, self._states)
        self._closer.atexit = False

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method on this session's states.

        Arguments are numpy arrays or torch tensors, nested as traced, by position or
        by name. Results are the caller's own, torch tensors when an argument was one.

        Raises:
            UnknownName: there is no such method.
            CallMismatch, InputMismatch: the arguments are not what was compiled for.
            CacheOverflow: the cache is full; nothing has been written.
            KernelFailed: an instruction failed; the message names its source line.
            Busy: the session is running in another thread.
            Closed: session or program have been closed.
        """
        index = self._table.find(name)
        with self._exclusive(name):
            return self._engine.call(index, args, kwargs, self._states)

    def reset(self) -> None:
        """Put every state that a reset clears back to its initial value.

        Raises:
            Busy, Closed: as `call`.
        """
        with self._exclusive("reset"):
            self._states.reset()

    @property
    def position(self) -> Array:
        """Return how many tokens the states hold, int64 [batch].

        Raises:
            NoPosition: nothing in this program counts tokens.
            Closed: the session has been closed.
        """
        position = self._engine.program.position
        if position is None or position.kind is not PositionKind.STATE:
            raise NoPosition()
        assert position.state is not None
        name = self._engine.program.states[position.state].name
        return own_copy(self.state[name]).reshape(-1)

    @property
    def capacity(self) -> int | None:
        """Return the greatest position, None where nothing limits it."""
        position = self._engine.program.position
        return None if position is None else position.capacity

    @property
    def state(self) -> Mapping[str, Array]:
        """Return a read-only look at the states, by name."""
        return StateViews(self._engine.program, self._states, self)

    @property
    def methods(self) -> Mapping[str, Method]:
        """Return the program's methods by name."""
        return {method.name: method for method in self._engine.program.methods}

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        """Return the program's symbolic sizes by name."""
        return self._engine.symbols

    def close(self) -> None:
        """Give the states' memory back; closing twice is safe.

        Raises:
            Busy: the session is running in another thread.
        """
        if not self._states.closed:
            with self._exclusive("close", check=False):
                self._closer()

    @contextmanager
    def _exclusive(self, name: str, check: bool = True) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise Busy(method=self._running or "a method")
        try:
            if self._states.closed:
                raise Closed(kind="session")
            if check:
                self._engine.check_open()
            self._running = name
            yield
        finally:
            self._running = ""
            self._lock.release()

    def __getattr__(self, name: str) -> Callable[..., object]:
        # Also asked before __init__ has run, for example by copy and pickle.
        if name.startswith("_"):
            raise AttributeError(name)
        return self._table.shorthand(self, self.call, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._table.names()]

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def choose_sizes(program: Program, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each symbol that states use.

    Raises:
        UnknownName: `wanted` names another one.
        BadSetting: a size is out of its bounds.
    """
    dims = [dim for state in program.states for dim in state.type.dims]
    used = {name for dim in dims if isinstance(dim, Affine) for name, _ in dim.terms}
    free = {symbol.name: symbol for symbol in program.symbols if symbol.name in used}
    for name in wanted:
        if name not in free:
            raise UnknownName(kind="session size", name=name, known=listing(list(free)))
    sizes = {}
    for name, symbol in free.items():
        default = max(1, symbol.lower) if name == "batch" else symbol.upper
        size = wanted.get(name, default)
        if not symbol.lower <= size <= symbol.upper:
            expected = f"{symbol.lower}..{symbol.upper}"
            raise BadSetting(name=name, expected=expected, found=size)
        sizes[name] = size
    return sizes
