"""A method in the place where torch looks for `forward`, watched while it is traced.

The instance's own attribute shadows the class's `forward`, so that names stay as the
user wrote them. What tracing would lose is refused: Python state that changes, buffers
that are assigned anew. The model is left as it was.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kvc.compiler.capture.assignments import traceable_assignments
from kvc.compiler.capture.lifted import PARAMETER, Lifted, Reassigned, swapped
from kvc.compiler.capture.python_state import changed_path, snapshot
from kvc.compiler.capture.reassigned import (
    Shared,
    replaced_buffers,
    unnoticed,
    write_back,
)
from kvc.compiler.capture.records import typed_method
from kvc.compiler.capture.registered import (
    Registered,
    anew,
    changed_name,
    loss,
    memories,
    registered,
    restored,
)
from kvc.compiler.spec import Method
from kvc.schema.errors import CaptureError


@contextmanager
def shadowed_forward(
    model: nn.Module, method: Method, lifted: Sequence[Lifted]
) -> Iterator[Callable[[], None]]:
    """Let a method stand where torch looks for `forward`.

    Yields:
        What to call before tracing strictly: dynamo drops assignments to buffers, so
        that it raises a CaptureError where a trace before has met one.

    Raises:
        CaptureError: it changes Python state, or assigns a buffer or parameter anew.
    """
    assigned: list[str] = []

    def refuse_assignments() -> None:
        if assigned:
            raise _refused(method, anew(assigned[0]))

    shadow = _watched(model, method, assigned)
    if lifted:
        shadow = _with_buffers(model, method, lifted, shadow)
    before = registered(model)
    with _forward(model, shadow), restored(model):
        yield refuse_assignments
        changed = changed_name(before, registered(model))
    if changed is not None:
        raise _refused(method, anew(changed))


@contextmanager
def _forward(model: nn.Module, forward: Callable[..., object] | None) -> Iterator[None]:
    """Let a function be the instance's `forward`; None lets the class's be seen."""
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


def _watched(
    model: nn.Module, method: Method, assigned: list[str]
) -> Callable[..., object]:
    """Return the method, refusing calls that change what tracing cannot follow.

    Names of buffers that it assigns anew are added to `assigned`.
    """
    function, forward = typed_method(model, method), vars(model).get("forward")

    @functools.wraps(function)
    def watched(*args: object, **kwargs: object) -> object:
        before, tensors = snapshot(model), _tensors(model, args, kwargs)
        with traceable_assignments(), _ours(model, forward):
            results = function(*args, **kwargs)
        after = _tensors(model, args, kwargs)
        lost = loss(tensors, after)
        if lost is not None:
            raise _refused(method, lost)
        changed = changed_path(before, snapshot(model))
        if changed is not None:
            raise _refused(
                method,
                f"it changes the attribute {changed!r}, which tracing would freeze at "
                "the value of one call; keep it in a buffer (register_buffer) and "
                "write into that, or set it before compiling",
            )
        replaced = replaced_buffers(tensors, after)
        assigned.extend(replaced)
        try:
            return write_back(model, replaced, tensors, results)
        except Shared as error:
            reason = f"it assigns {error}; copy values instead, with copy_(...)"
            raise _refused(method, reason) from error

    return watched


@contextmanager
def _ours(model: nn.Module, forward: Callable[..., object] | None) -> Iterator[None]:
    """Let us, not torch, make writes of assignments, and the method call `forward`.

    Dynamo follows none of this, so that it goes without.
    """
    if torch.compiler.is_dynamo_compiling():
        yield
        return
    with unnoticed(), _forward(model, forward):
        yield


def _tensors(
    model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> Registered:
    """Return what a method may put others in the place of; nothing under dynamo.

    There the model itself is looked at, when the trace is done.
    """
    if torch.compiler.is_dynamo_compiling():
        return {}
    passed = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    return registered(model) | memories(passed)


def _with_buffers(
    model: nn.Module,
    method: Method,
    lifted: Sequence[Lifted],
    function: Callable[..., object],
) -> Callable[..., object]:
    """Return the method with one more parameter: tensors in the place of buffers."""

    def with_buffers(*args: object, **kwargs: object) -> object:
        traced = kwargs.pop(PARAMETER)
        assert isinstance(traced, Sequence)
        try:
            with swapped(model, lifted, traced):
                return function(*args, **kwargs)
        except Reassigned as error:
            raise _refused(method, anew(str(error))) from error

    signature = inspect.signature(function)
    added = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values()]
    at = sum(p.kind is not p.VAR_KEYWORD for p in parameters)
    parameters.insert(at, added)
    with_buffers.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return with_buffers


def _refused(method: Method, reason: str) -> CaptureError:
    return CaptureError(method=method.name, place="", reason=reason)
