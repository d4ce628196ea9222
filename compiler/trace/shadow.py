"""Install a method as `forward`, which torch traces, and record what it accesses.

An attribute of the instance shadows the class's `forward`, so the names of modules stay
as the user wrote them. Changes that tracing would lose are refused: changes of Python
state, assignments to buffers. The model is restored afterwards.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kvc.compiler.decompose.assignments import TraceableAssignments
from kvc.compiler.request.spec import Method
from kvc.compiler.trace.aliases import (
    AliasMode,
    RegisteredMemory,
    all_names,
    one_name_each,
)
from kvc.compiler.trace.bodies import outside_of_bodies
from kvc.compiler.trace.examples import names_of_sizes
from kvc.compiler.trace.guard import Guard
from kvc.compiler.trace.python_state import PythonState, Unchanged
from kvc.compiler.trace.records import typed_method
from kvc.compiler.trace.registered import (
    Registered,
    Shared,
    anew,
    changed_name,
    loss,
    memories,
    other_memory,
    other_shape,
    registered,
    replaced_buffers,
    reshaped,
    shapes_of,
    traced_slots,
    unnoticed,
    write_back,
)
from kvc.compiler.trace.sources import definition_of
from kvc.compiler.trace.traced import PARAMETER, Lifted, Reassigned, swapped
from kvc.compiler.weights.tensor_identity import Extent
from kvc.schema.errors import CaptureError, StateConflict

# Hooks that run when a module is called, but not when a method of it is called.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@dataclass(slots=True)
class Observed:
    """The accesses of a traced method to the memory of a model, filled in as it runs.

    Attributes:
        aliases: name of a registered tensor -> the path of a tensor over its memory
            that the method used instead.
        assigned: names of buffers that the method assigned anew.
        missed: name of a registered tensor -> ` at module:line` where its memory was
            read outside of the trace.
        arrays: name of a registered tensor -> path of a numpy array over its memory.
        sizes: torch's name of a size -> the name of its Dim.
    """

    aliases: dict[str, str] = field(default_factory=dict)
    assigned: list[str] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)


@contextmanager
def shadowed_forward(
    model: nn.Module, method: Method, lifted: Sequence[Lifted]
) -> Iterator[Observed]:
    """Install a method as the model's `forward`, within this context.

    Yields:
        A record of accesses to the model's memory, complete when the method has been
            traced.

    Raises:
        CaptureError: the method changes Python state, writes into tensors that are not
            the model's, or assigns a buffer or parameter anew.
    """
    memory, observed = RegisteredMemory(model), Observed()
    for one in lifted:
        whole = memory.whole_of(one.name)
        if whole is not None:
            reason = (
                f"StateSpec {one.pattern!r} matches it, but it lies within the buffer "
                f"{whole!r}; name that one, or give it memory of its own"
            )
            raise StateConflict(state=one.name, reason=reason)
    with Unchanged(model, method.args, method.kwargs) as kept:
        observed.arrays.update(_arrays(kept.state, memory))
        versions = _versions(kept.state)
        shadow = _watched(_Watch(model, method, lifted, memory, kept.state, observed))
        if lifted:
            shadow = _with_buffers(model, method, lifted, shadow)
        before = registered(model)
        hooks = _without_hooks(model, method)
        with _forward(model, shadow), hooks, one_name_each(memory):
            yield observed
        changed = changed_name(before, registered(model))
    if changed is not None:
        raise _refused(model, method, anew(changed))
    _check_versions(model, method, kept.state, versions)


@contextmanager
def _default_dtype_kept(model: nn.Module, method: Method) -> Iterator[None]:
    """Refuse a method that changes torch's default dtype, as no trace records that."""

    def refuse(dtype: object) -> None:
        # torch itself sets the same dtype again.
        if dtype is not torch.get_default_dtype():
            reason = f"it sets torch's default dtype to {dtype}; give dtype= instead"
            raise _refused(model, method, reason)

    with patch.object(torch, "set_default_dtype", refuse):
        yield


@contextmanager
def _set(attributes: dict[str, object], values: Mapping[str, object]) -> Iterator[None]:
    """Set `attributes` to `values` within this context; restore them afterwards."""
    before = {name: attributes[name] for name in values}
    attributes.update(values)
    try:
        yield
    finally:
        attributes.update(before)


@contextmanager
def _without_hooks(model: nn.Module, method: Method) -> Iterator[None]:
    """Keep torch from running the hooks of `forward` while it calls the model.

    Raises:
        CaptureError: the class has a `__call__` of its own, which torch would run.
    """
    if method.name == "forward":
        yield
        return
    if type(model).__call__ is not nn.Module.__call__:
        raise _refused(
            model,
            method,
            f"{type(model).__name__} has a __call__ of its own, which tracing would "
            "run for every method; move its code to forward",
        )
    with _set(vars(model), {name: OrderedDict() for name in _HOOKS}):
        yield


@contextmanager
def _forward(model: nn.Module, forward: Callable[..., object] | None) -> Iterator[None]:
    """Make a function the instance's `forward`; None means the class's `forward`."""
    own = vars(model)
    before = own.pop("forward", None)
    if forward is not None:
        own["forward"] = forward
    try:
        yield
    finally:
        own.pop("forward", None)
        if before is not None:
            own["forward"] = before


@dataclass(frozen=True, slots=True)
class _Watch:
    """A model's tensors and Python state before a trace, and the accesses to them."""

    model: nn.Module
    method: Method
    lifted: Sequence[Lifted]
    memory: RegisteredMemory
    state: PythonState
    observed: Observed

    def aliases(self) -> AliasMode:
        """Return an alias mode for the tensors that are registered now."""
        traced = {n: t for n, (t, _) in registered(self.model).items() if t is not None}
        for name, real in self.memory.named.items():
            own = vars(traced[name])  # keep attributes that code has set on the tensor
            own.update({k: v for k, v in vars(real).items() if k not in own})
        sized = {name: [*one.axes] for one in self.lifted for name in one.names}
        return AliasMode(self.memory, traced, sized)

    def note(self, aliases: AliasMode, guard: Guard) -> None:
        """Record what both modes found; raise errors that the model's code caught."""
        paths = {n: self.state.path_of(t, n) for n, t in aliases.used.items()}
        self.observed.aliases.update(paths)
        self.observed.missed.update(guard.missed)
        if guard.refused is not None:
            raise guard.refused
        if aliases.failed is not None:
            raise aliases.failed
        if aliases.given is not None:
            path = self.state.path_of(aliases.given) or "a tensor"
            raise _refused(self.model, self.method, other_memory(path))

    def check_shapes(
        self, before: Mapping[str, torch.Size], after: Registered, aliases: AliasMode
    ) -> None:
        """Check that tensors have the same shapes as before the call."""
        reason = reshaped(before, after)
        other = aliases.reshaped()
        if reason is None and other is not None:
            reason = other_shape(self.state.path_of(other) or "a tensor")
        if reason is not None:
            raise _refused(self.model, self.method, reason)


def _watched(watch: _Watch) -> Callable[..., object]:
    """Return a function that runs the method and refuses changes that tracing loses."""
    model, method = watch.model, watch.method
    function, forward = typed_method(model, method), vars(model).get("forward")
    hooks = {name: vars(model)[name] for name in _HOOKS}

    @functools.wraps(function)
    def watched(*args: object, **kwargs: object) -> object:
        watch.observed.sizes.update(names_of_sizes(method, kwargs))
        aliases = watch.aliases()
        guard = Guard(method.name, watch.memory, watch.state)
        modes = outside_of_bodies(aliases, guard)
        names = all_names(watch.memory, aliases)
        own, kept = _set(vars(model), hooks), _default_dtype_kept(model, method)
        with unnoticed(), _forward(model, forward), own, kept, modes, names:
            before, tensors = PythonState(model), _tensors(model, args, kwargs, aliases)
            shapes = shapes_of(tensors)
            with TraceableAssignments():
                results = function(*args, **kwargs)
            after = _tensors(model, args, kwargs, aliases)
            watch.note(aliases, guard)
            _check_kept(watch, tensors, after, before)
            watch.check_shapes(shapes, after, aliases)
            return _written_back(watch, tensors, after, aliases.traced(results))

    return watched


def _check_kept(
    watch: _Watch, before: Registered, after: Registered, state: PythonState
) -> None:
    """Check that tracing loses no change that a method has made."""
    lost = loss(before, after)
    if lost is not None:
        raise _refused(watch.model, watch.method, lost)
    changed = state.changed()
    if changed is not None:
        raise _refused(
            watch.model,
            watch.method,
            f"it changes the attribute {changed!r}, which tracing would freeze at "
            "the value of one call; keep it in a buffer (register_buffer) and "
            "write into that, or set it before compiling",
        )


def _written_back(
    watch: _Watch, before: Registered, after: Registered, results: object
) -> object:
    """Turn assignments to buffers into writes; return the method's results."""
    replaced = replaced_buffers(before, after)
    watch.observed.assigned.extend(replaced)
    other_names = {name: watch.memory.other_name(name) for name in replaced}
    try:
        return write_back(watch.model, replaced, before, results, other_names)
    except Shared as error:
        reason = f"it assigns {error}; copy values instead, with copy_(...)"
        raise _refused(watch.model, watch.method, reason) from error


def _tensors(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    aliases: AliasMode,
) -> Registered:
    """Return the table of registered tensors and arguments, as traced tensors."""
    passed = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    return traced_slots(registered(model) | memories(passed), aliases.traced)


def _arrays(state: PythonState, memory: RegisteredMemory) -> Iterator[tuple[str, str]]:
    """Yield (name of a registered tensor, path of a numpy array over its memory)."""
    for path, array in state.arrays.items():
        name = memory.overlapping(Extent.of_array(array))
        if name is not None:
            yield name, path


def _versions(state: PythonState) -> dict[str, int]:
    """Return path -> torch's version counter, which counts writes, for each tensor."""
    tensors = state.tensors.items()
    return {path: t._version for path, t in tensors if not t.is_inference()}


def _check_versions(
    model: nn.Module, method: Method, state: PythonState, versions: dict[str, int]
) -> None:
    """Check that no tensor was written while a method was traced.

    Raises:
        CaptureError: a tensor was written, unseen by the guard.
    """
    for path, version in _versions(state).items():
        if version != versions[path]:
            raise _refused(
                model,
                method,
                f"it writes into {path!r} in a way that cannot be traced, and has done "
                "so now: build the model anew, and use operators of torch",
            )


def _with_buffers(
    model: nn.Module,
    method: Method,
    lifted: Sequence[Lifted],
    function: Callable[..., object],
) -> Callable[..., object]:
    """Return the method with one more parameter, for tensors that replace buffers."""

    def with_buffers(*args: object, **kwargs: object) -> object:
        traced = kwargs.pop(PARAMETER)
        assert isinstance(traced, Sequence)
        try:
            with swapped(model, lifted, traced):
                return function(*args, **kwargs)
        except Reassigned as error:
            raise _refused(model, method, anew(str(error))) from error

    signature = inspect.signature(function)
    added = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values()]
    parameters.insert(sum(p.kind is not p.VAR_KEYWORD for p in parameters), added)
    with_buffers.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return with_buffers


def _refused(model: nn.Module, method: Method, reason: str) -> CaptureError:
    place = definition_of(getattr(model, method.name))
    return CaptureError(method=method.name, place=place, reason=reason)
