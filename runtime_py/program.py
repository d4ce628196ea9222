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

    def session(self, **sizes: int) -> Session:
        """Open a session with states of its own.

        Args:
            sizes: for symbols that states use; `capacity=64` for one called capacity.
                Left out, each is its greatest, since reserving costs nothing, but
                `batch` is 1.

        Raises:
            UnknownName: no state uses such a symbol.
            BadSetting: a size is out of its bounds.
            Closed: the program has been closed.
        """
        return Session(self._engine, sizes)

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method that touches no state.

        Raises:
            UnknownName: there is no such method.
            StateNeeded: it has state; open a session.
            ExecutionError: as `Session.call`.
        """
        index = self._table.find(name)
        method = self._engine.program.methods[index]
        used = method.reads + method.writes
        if used:
            state = self._engine.program.states[used[0]].name
            raise StateNeeded(method=name, state=state)
        return self._engine.call(index, args, kwargs, None)

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
