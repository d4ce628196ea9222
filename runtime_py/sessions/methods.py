"""`Callables`: the shared base of `Program` and `Session`.

In: an engine. Out: the program's methods by name, its metadata and files.
`session.call("name", ...)` always works. `session.name(...)` is a shorthand, which
works only if the class has no attribute of that name: a compiled method called `close`
does not replace `Session.close`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from kvc.runtime.calls.inputs import TokenInput
from kvc.runtime.data import BundledFiles
from kvc.runtime.sessions.engine import Engine
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSetting, UnknownName, listing, meant
from kvc.schema.model import Method
from kvc.schema.types import Symbol

# Settings in the metadata


def parsed(metadata: Mapping[str, str], name: str) -> object:
    """Return the parsed value of a setting, None if the metadata lacks the name.

    Raises:
        BadSetting: the value is not valid JSON.
    """
    try:
        found: object = json.loads(metadata.get(name, "null"))
    except (ValueError, RecursionError) as error:
        raise impossible(metadata, name) from error
    return found


def impossible(metadata: Mapping[str, str], name: str) -> BadSetting:
    """Return the error for a metadata setting that is not valid JSON."""
    found = metadata.get(name, "nothing")[:80]
    expected = "a value that kvc compile writes"
    return BadSetting(
        name=f"the bundle's metadata {name}", expected=expected, found=found
    )


# Calling methods by name


class Callables(Closing):
    """Base class of objects whose compiled methods can be called by name."""

    _engine: Engine

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method by its name."""
        raise NotImplementedError

    @property
    def methods(self) -> Mapping[str, Method]:
        """Return the program's methods by name."""
        methods = self._engine.program.methods
        called = {one.name: one for one in methods if one.adapts is None}
        return MappingProxyType(called)

    def token_input(self, method: Method) -> TokenInput | None:
        """Return a method's input of tokens, None for a method without one."""
        engine = self._engine
        return engine.entry(engine.method_ids[method.name]).tokens

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the settings in the bundle: name -> JSON text."""
        return MappingProxyType(dict(self._engine.program.metadata))

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the files in the bundle, such as a tokenizer, by name.

        A file is read and checked at each access.
        """
        return BundledFiles(self._engine.program, self._engine.data)

    @property
    def program_key(self) -> object:
        """Return an object that a program and its sessions share: a key for caches."""
        return self._engine

    @property
    def identity(self) -> str:
        """Return the identity, in hexadecimal, that saved sessions must match.

        The identity covers states, methods, and the constants that methods read. It
        does not cover blob offsets, packed weights, files, settings and provenance.
        """
        return self._engine.identity

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        """Return the program's symbolic sizes by name."""
        return self._engine.symbols

    def _find(self, name: str) -> int:
        """Return a method's id.

        Raises:
            UnknownName: the program has no method of that name.
        """
        ids = self._engine.method_ids
        if name not in ids:
            raise UnknownName(kind="method", name=name, known=tuple(ids))
        return ids[name]

    def __getattr__(self, name: str) -> Callable[..., object]:
        # Python also calls this before __init__ has run, for example in copy and
        # pickle.
        if name.startswith("_"):
            raise AttributeError(name)
        ids = self._engine.method_ids
        if name not in ids:
            what = f"{type(self).__name__} has no attribute {name!r}{meant(name, ids)}"
            raise AttributeError(f"{what}; methods: {listing(list(ids))}")
        return partial(self.call, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._engine.method_ids]


def find_roles(program: Callables, role: str) -> list[Method]:
    """Return the methods that have a role; fail if no method has the role.

    Raises:
        UnknownName: no method has the role.
        BadSetting: no method has the role, and the metadata "task" is not valid JSON.
    """
    found = [method for method in program.methods.values() if method.role == role]
    if not found:
        task = parsed(program.metadata, "task")
        other = (
            f"; its model is for another task, {task!r}: use kvc embed or kvc classify"
        )
        hint = other if task else "; a method is given one by Method(role=...)"
        raise missing_role(program, role, hint)
    return found


def missing_role(program: Callables, role: str, hint: str = "") -> UnknownName:
    """Return the error for a program without a method of a role."""
    known = dict.fromkeys(m.role for m in program.methods.values() if m.role)
    return UnknownName(
        kind="method of the role", name=role, known=tuple(known), hint=hint
    )


def find_all_logits(program: Callables) -> Method | None:
    """Return the method that appends tokens and returns the logits of every token.

    Return None if the program has no such method.
    """
    with_all = (m for m in program.methods.values() if m.role == "prefill_all")
    return next((m for m in with_all if m.writes and m.advance is not None), None)


def require_all_logits(program: Callables, needed_by: str) -> Method:
    """Return the method that `find_all_logits` returns.

    Args:
        program: a program or a session.
        needed_by: what needs the method, for the message.

    Raises:
        UnknownName: the program has no method that returns the logits of every token.
    """
    method = find_all_logits(program)
    if method is None:
        raise missing_role(
            program,
            "prefill_all",
            f". {needed_by} needs it: compile with --all-logits "
            "(export_hf(all_logits=True)), or give the model a method that appends "
            "tokens int64 [batch, seq] and returns the logits of each, float32 "
            "[batch, seq, vocab]",
        )
    return method
