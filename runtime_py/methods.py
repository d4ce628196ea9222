"""`Callables`: what a program and its sessions share: methods by name, metadata, files.

`call("name", ...)` always works. The attribute is a shorthand, which Python uses only
if the class has no such name itself, so a method called `close` does not replace
`Session.close`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from kvc.runtime.data import BundledFiles
from kvc.runtime.engine import Engine
from kvc.schema.closing import Closing
from kvc.schema.errors import UnknownName, listing, meant
from kvc.schema.model import Method


class Callables(Closing):
    """Something of a bundle whose methods may be called."""

    _engine: Engine

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method."""
        raise NotImplementedError

    @property
    def methods(self) -> Mapping[str, Method]:
        """Return the program's methods by name."""
        methods = self._engine.program.methods
        return MappingProxyType({method.name: method for method in methods})

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the user's settings, name to JSON text."""
        return MappingProxyType(dict(self._engine.program.metadata))

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the files in the bundle, such as a tokenizer, by name.

        It is read and checked each time it is asked for.
        """
        return BundledFiles(self._engine.program, self._engine.data)

    def _find(self, name: str) -> int:
        """Return a method's id.

        Raises:
            UnknownName: there is no such method.
        """
        ids = self._engine.method_ids
        if name not in ids:
            raise UnknownName(kind="method", name=name, known=tuple(ids))
        return ids[name]

    def __getattr__(self, name: str) -> Callable[..., object]:
        # Also asked before __init__ has run, for example by copy and pickle.
        if name.startswith("_"):
            raise AttributeError(name)
        ids = self._engine.method_ids
        if name not in ids:
            what = f"{type(self).__name__} has no attribute {name!r}{meant(name, ids)}"
            raise AttributeError(f"{what}; methods: {listing(list(ids))}")
        return partial(self.call, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._engine.method_ids]
