"""`load` and `Program`: a bundle that is open, immutable, and used from many threads.

In: the path of a bundle. Out: what is inside it, sessions, and calls of methods that
touch no state. Only header and program are read here; data is mapped on first need.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.table import check_backends
from kvc.runtime.engine import Engine
from kvc.runtime.methods import MethodTable
from kvc.runtime.sessions import Session
from kvc.runtime.snapshots import Snapshot
from kvc.schema.container import BundleFile
from kvc.schema.errors import FileProblem, StateNeeded
from kvc.schema.model import Method, State


def load(path: str | os.PathLike[str]) -> "Program":
    """Open a bundle.

    Raises:
        FormatError: the file is damaged, or no bundle.
        LoadError: it cannot be read, or needs a backend that is not here.
    """
    bundle = BundleFile.open(path)
    try:
        check_backends(bundle.program, bundle.path)
        _check_files(bundle)
        return Program(bundle)
    except BaseException:
        bundle.close()
        raise


def _check_files(bundle: BundleFile) -> None:
    for file in bundle.program.files[1:]:
        reason = f"{bundle.path} keeps data in it, which this kvc cannot read"
        raise FileProblem(path=file.name, reason=reason)


class Program:
    """A loaded bundle. Methods without state may be called on it directly.

    Attributes:
        path: of the bundle.
        digest: identity of the program, in hexadecimal.
        methods, states: what the file declares, by name.
        data: named data; each request gives a `FreeableBuffer` of its own.
        metadata: the user's settings, name to JSON text.
    """

    def __init__(self, bundle: BundleFile) -> None:
        self._engine = Engine(bundle)
        self._table = MethodTable(self._engine)
        declared = bundle.program
        self.path: str = bundle.path
        self.digest: str = bundle.digest
        self.methods: Mapping[str, Method] = MappingProxyType(
            {method.name: method for method in declared.methods}
        )
        self.states: Mapping[str, State] = MappingProxyType(
            {state.name: state for state in declared.states}
        )
        self.data: Mapping[str, FreeableBuffer] = self._engine.data
        self.metadata: Mapping[str, str] = MappingProxyType(dict(declared.metadata))

    def session(
        self,
        capacity: int | None = None,
        transactional: bool = False,
        **sizes: int,
    ) -> Session:
        """Open a session with states of its own.

        Args:
            capacity: greatest position; left out, the greatest that was declared, since
                reserving costs nothing.
            transactional: copy, before each call, what a call that fails could not put
                back, so that no failure poisons the session.
            sizes: for symbols that states use. Left out, each is its greatest, but
                `batch` is 1.

        Raises:
            UnknownName: no state uses such a symbol, or nothing limits a position.
            BadSetting: a size is out of its bounds.
            OutOfMemory: the system gives no address space.
            Closed, Forked: the program is closed, or belongs to another process.
        """
        self._engine.check_open()
        return Session(self._engine, sizes, capacity, transactional)

    def restore(
        self, path: str | os.PathLike[str], transactional: bool = False
    ) -> Session:
        """Open a session as `Session.save` left one.

        Raises:
            BadSetting: `path` is no path.
            BadSnapshot: the file is damaged, or of another program.
            FileProblem: the system cannot read it.
            OutOfMemory, Closed, Forked: as `session`.
        """
        self._engine.check_open()
        with Snapshot(path, self._engine.program, self.digest) as snapshot:
            return Session(
                self._engine,
                snapshot.header.sizes,
                snapshot.header.wanted_capacity,
                transactional,
                fill=snapshot.load,
            )

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method that touches no state.

        Raises:
            UnknownName: there is no such method.
            StateNeeded: it has state; open a session.
            ExecutionError: as `Session.call`.
        """
        index = self._table.find(name)
        if needed := self._state_needed(index):
            self._engine.check_open()
            raise StateNeeded(method=name, state=needed)
        return self._engine.call(index, args, kwargs, None)

    def _state_needed(self, index: int) -> str:
        """Return the name of a state that a method uses, or of its position, or ""."""
        method = self._engine.program.methods[index]
        for state in method.reads + method.writes:
            return self._engine.program.states[state].name
        entry = self._engine.entry(index)
        return "" if entry.position is None else method.input_names[entry.position]

    def close(self) -> None:
        """Release everything; calls that still run in other threads finish first."""
        self._engine.close()

    def __getattr__(self, name: str) -> Callable[..., object]:
        # Also asked before __init__ has run, for example by copy and pickle.
        if name.startswith("_"):
            raise AttributeError(name)
        return self._table.shorthand(self, self.call, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._table.names()]

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Program {self.path}: {', '.join(self.methods)}>"
