"""How a method is found by its name, for programs and sessions alike.

`call("name", ...)` always works. The attribute is a shorthand, which Python asks for
only when the class has no such name itself, so that a method called `close` does not
take the place of `Session.close`.
"""

from collections.abc import Callable
from functools import partial

from kvc.runtime.engine import Engine
from kvc.schema.errors import UnknownName, listing, meant


class MethodTable:
    """The methods of a program by name."""

    def __init__(self, engine: Engine) -> None:
        self._ids = {method.name: i for i, method in enumerate(engine.program.methods)}

    def find(self, name: str) -> int:
        """Return a method's id.

        Raises:
            UnknownName: there is no such method.
        """
        if name not in self._ids:
            raise UnknownName(kind="method", name=name, known=tuple(self._ids))
        return self._ids[name]

    def shorthand(
        self, owner: object, call: Callable[..., object], name: str
    ) -> Callable[..., object]:
        """Return what the attribute `name` of a program or session stands for.

        Raises:
            AttributeError: there is no such method.
        """
        if name not in self._ids:
            kind, near = type(owner).__name__, meant(name, self._ids)
            known = listing(list(self._ids))
            text = f"{kind} has no attribute {name!r}{near}; methods: {known}"
            raise AttributeError(text)
        return partial(call, name)

    def names(self) -> tuple[str, ...]:
        """Return the names in the order of the file."""
        return tuple(self._ids)
