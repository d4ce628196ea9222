"""One `torch.export` a method, made functional, with the model left as it was.

In: a module and the declared methods. Out: one `CapturedMethod` each. A method is
exported by letting the instance's `forward` shadow it, so that names stay as the
user wrote them; the decomposition table keeps whole the ops that have fast kernels.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx.experimental import _config as symbol_settings

from kvc.compiler.capture import examples
from kvc.compiler.capture.lines import lines_kept
from kvc.compiler.capture.python_state import changed_path, snapshot
from kvc.compiler.capture.questions import check_questions, noted_questions
from kvc.compiler.capture.quiet import quiet
from kvc.compiler.identity import Identity, overlapping
from kvc.compiler.spec import Method, tensors_of
from kvc.schema.errors import CaptureError, StateConflict

logger = logging.getLogger(__name__)

_aten = torch.ops.aten
# Full decomposition makes two to three times the nodes and runs 1.2 to 1.3 times
# slower (measured on a 30-layer decoder); these stay whole.
KEPT_WHOLE = (
    _aten.scaled_dot_product_attention.default,
    _aten.linear.default,
    _aten.rms_norm.default,
    _aten.layer_norm.default,
    _aten.silu.default,
    _aten.index_copy.default,
    _aten.matmul.default,
    _aten.softmax.int,
    _aten.log_softmax.int,
    _aten.split.Tensor,
    _aten.transpose.int,
)


# What to do about torch's complaints, by a part of their text.
_ADVICE = {
    "Constraints violated": (
        "the code does not hold for all declared sizes; change the bounds of the Dim, "
        "or compile such sizes as methods of their own"
    ),
    "user_output list": (
        "torch cannot tell its results and states apart; return clones of results that "
        "are states or views of them"
    ),
    "data-dependent": (
        "it asks for the value of a tensor while it is traced (`if` on a tensor, "
        "`.item()`, a size that depends on values); use torch.where"
    ),
    "copy__default": (
        "it assigns a buffer a value of another shape (self.past = torch.cat(...)); "
        "write into a buffer of fixed size instead, with index_copy_ or "
        "torch.ops.kvc.cache_update"
    ),
}


@dataclass(frozen=True, slots=True)
class CapturedMethod:
    """A traced method.

    Attributes:
        method: what the user declared.
        arguments: the examples it was traced with, by parameter name.
        exported: functional: mutations are outputs.
    """

    method: Method
    arguments: Mapping[str, object]
    exported: ExportedProgram


def capture(model: nn.Module, method: Method) -> CapturedMethod:
    """Trace one method.

    Args:
        model: the module; it is unchanged afterwards.
        method: the method and its example arguments.

    Raises:
        CaptureError: the method cannot be traced; says where and what to try.
    """
    names = examples.parameter_names(model, method)
    arguments = examples.named_arguments(names, method)
    examples.check_dynamic(arguments, method)
    arguments = examples.lengthen(arguments, method)
    shapes = examples.torch_dynamic_shapes(arguments, method)
    with _restored_tensors(model, method), _shadowed_forward(model, method):
        exported = _export(model, method, arguments, shapes)
    return CapturedMethod(method, arguments, exported)


def _export(
    model: nn.Module,
    method: Method,
    arguments: Mapping[str, object],
    shapes: Mapping[str, object],
) -> ExportedProgram:
    """Export non-strictly; retry strictly where torch needs that."""

    def attempt(strict: bool) -> ExportedProgram:
        # Without "duck shapes": two Dims stay two when their examples are equal.
        apart = symbol_settings.patch(  # type: ignore[attr-defined]
            use_duck_shape=False
        )
        with torch.no_grad(), apart, lines_kept(), quiet():
            with noted_questions() as questions:
                exported = torch.export.export(
                    model,
                    (),
                    dict(arguments),
                    dynamic_shapes=dict(shapes),
                    strict=strict,
                )
            check_questions(method, arguments, exported, questions)
            functional: ExportedProgram = exported.run_decompositions(_decompositions())
            return functional

    try:
        return attempt(strict=False)
    except CaptureError:
        raise
    except Exception as error:
        # Two names over one storage: torch may manage that when it traces strictly.
        if "compiled_fn" not in str(error):
            raise _translated(method, error) from error
        logger.info("method %s: tracing again, strictly", method.name)
    try:
        return attempt(strict=True)
    except CaptureError:
        raise
    except Exception as error:
        _refuse_overlaps(model)
        raise _translated(method, error) from error


def _refuse_overlaps(model: nn.Module) -> None:
    """Raise where two tensors over the same bytes explain why torch gave up."""
    named = tensors_of(model)
    for name, tensor in named.items():
        for other in overlapping(tensor, named):
            reason = (
                f"it shares memory with {other!r} in another shape or place, which "
                "cannot be traced; keep one buffer and take views of it in the code"
            )
            raise StateConflict(state=name, reason=reason)


def _decompositions() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    table = torch.export.default_decompositions()
    for op in KEPT_WHOLE:
        table.pop(op, None)  # type: ignore[no-untyped-call]
    return dict(table.items())  # type: ignore[no-untyped-call]


def _translated(method: Method, error: Exception) -> CaptureError:
    """Return torch's complaint as one paragraph of ours, with advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:4]) or type(error).__name__
    text = text.partition("The error above occurred")[0].strip()
    advice = [known for part, known in _ADVICE.items() if part in text]
    reason = ". ".join([*advice, f"torch.export says: {text[:600]}"])
    return CaptureError(method=method.name, place="", reason=reason)


@contextmanager
def _shadowed_forward(model: nn.Module, method: Method) -> Iterator[None]:
    """Let a method stand where torch looks for `forward`."""
    before = model.__dict__.get("forward")
    model.__dict__["forward"] = _watched(model, method)
    try:
        yield
    finally:
        del model.__dict__["forward"]
        if before is not None:
            model.__dict__["forward"] = before


def _watched(model: nn.Module, method: Method) -> Callable[..., object]:
    """Return the method, refusing calls that change Python state."""
    function = getattr(model, method.name)

    @functools.wraps(function)
    def watched(*args: object, **kwargs: object) -> object:
        before = snapshot(model)
        results = function(*args, **kwargs)
        changed = changed_path(before, snapshot(model))
        if changed is not None:
            reason = (
                f"it changes the attribute {changed!r}, which tracing would freeze at "
                "the value of one call; keep it in a buffer (register_buffer) and "
                "write into that, or set it before compiling"
            )
            raise CaptureError(method=method.name, place="", reason=reason)
        return results

    return watched


@contextmanager
def _restored_tensors(model: nn.Module, method: Method) -> Iterator[None]:
    """Refuse a method that assigns a buffer anew; give the model its buffers back."""
    before = tensors_of(model)
    try:
        yield
    finally:
        changed = [
            name
            for name, tensor in tensors_of(model).items()
            if name not in before or Identity.of(before[name]) != Identity.of(tensor)
        ]
        for name in changed:
            _put_back(model, name, before.get(name))
    if changed:
        reason = (
            f"it assigns the buffer {changed[0]!r} anew, which tracing drops; write "
            f"into it instead: self.{changed[0]}.copy_(...), or return the new value"
        )
        raise CaptureError(method=method.name, place="", reason=reason)


def _put_back(model: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if tensor is None:
        delattr(module, leaf)
    elif isinstance(tensor, nn.Parameter):
        module._parameters[leaf] = tensor
    else:
        module._buffers[leaf] = tensor
