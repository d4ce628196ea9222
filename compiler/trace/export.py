"""Trace each method with `torch.export`, functionally; leave the model unchanged.

In: a module and the declared methods. Out: one `CapturedMethod` for each method. Three
modules help: `shadow` installs the method as `forward`, where torch looks for it;
`traced` lists the inputs; `decompositions` lists the operators that are decomposed.
"""

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx.experimental import _config as symbol_settings

from kvc.compiler.decompose.claims import Question
from kvc.compiler.decompose.decompositions import KEPT_WHOLE, decompositions
from kvc.compiler.decompose.renormed import Bound, TablePlace, bounds_of, noted_lookups
from kvc.compiler.functional import (
    FunctionalProgram,
    Unwritable,
    WritesConstant,
    functional,
)
from kvc.compiler.request.spec import Method, StateSpec, tensors_of
from kvc.compiler.trace import examples
from kvc.compiler.trace.guard import unseen
from kvc.compiler.trace.real_parts import without_complex
from kvc.compiler.trace.shadow import Observed, shadowed_forward
from kvc.compiler.trace.shape_guards import (
    asserted,
    check_questions,
    dims_of,
    noted_constants,
    noted_questions,
    refuse_fixed,
)
from kvc.compiler.trace.sizes_kept import work_once
from kvc.compiler.trace.sources import (
    at_source_of,
    lines_kept,
    place_of_failure,
    words_of,
)
from kvc.compiler.trace.terminal import below_torch, interruptible, quiet
from kvc.compiler.trace.torch_patches import writes_traced
from kvc.compiler.trace.traced import Lifted, Traced, lifted_buffers, traced_method
from kvc.compiler.weights.tensor_identity import overlapping
from kvc.schema.errors import CaptureError, SizesRefused, StateConflict
from kvc.schema.interrupts import check_interrupts, hold_interrupts

logger = logging.getLogger(__name__)

_ONE_AT_A_TIME = threading.RLock()  # torch is patched while it traces
_VALUES = (
    "it asks for the value of a tensor while it is traced (`if` on a tensor, "
    "`int(...)`, a size that depends on values); use torch.where, and for the position "
    "of a write .item() with a slice of fixed length, or index_copy_ at a tensor"
)
_NO_ARRAYS = (
    "it makes a numpy array of a tensor, which has no values while it is traced; use "
    "torch's functions"
)
_ALIKE = (
    "the results of both branches of torch.cond need the same layout in memory; return "
    ".clone(memory_format=torch.contiguous_format) of views"
)
_NESTED = (
    "torch may not know a size (u0) of a branch within another branch or a loop; write "
    "the inner branch with torch.where"
)
_SIZE = re.compile(r"\bs\d+\b")  # torch's name of a dynamic size
_NO_GRADIENTS = "it computes gradients, which a bundle does not"
# Errors about sizes that torch cannot reason about; the second is a bug of its solver.
_VIOLATED = "Constraints violated"
_OF_SIZES = (_VIOLATED, "Expected op to be '=='")
# A part of torch's error text -> advice for the user.
_ADVICE = {
    "register it as buffer": (
        "it writes into an attribute that is a plain tensor, which is not part of the "
        "model; make it a buffer with register_buffer"
    ),
    _VIOLATED: (
        "change the bounds of the Dim, or compile such sizes as methods of their own"
    ),
    "might be aliasing": (
        "torch.cond and loops take and return no tensors that share memory; pass "
        ".clone() of views, and return .clone() of unchanged inputs"
    ),
    "Mutating a variable from outside": (
        "the body of a branch or loop assigns to an attribute; write into the buffer "
        "with copy_(...)"
    ),
    "sorted order of strides": _ALIKE,
    "KeyError: Max(": f"{_ALIKE}; {_NESTED}",
    "KeyError: Min(": f"{_ALIKE}; {_NESTED}",
    "simple accumulative multiplication": f"{_ALIKE}; {_NESTED}",
    "have same metadata": (
        "the carried tensors of torch.while_loop and scan must keep their shape, dtype "
        "and order in memory; return .clone(memory_format=torch.contiguous_format) of "
        f"views; {_NESTED}"
    ),
    "data-dependent": _VALUES,
    "DataDependentOutputException": _VALUES,
    "DynamicOutputShapeException": _VALUES,
    "Pending unbacked symbols": _VALUES,
    "can be converted to an index": _VALUES,
    ".numpy() is not supported": _NO_ARRAYS,
    "got an unexpected keyword argument 'axis'": _NO_ARRAYS,
    "data is not allocated yet": (
        "it makes a tensor from values of others, as torch.tensor([x[0], x[1]]); use "
        "torch.stack or torch.cat"
    ),
    "support for cuda": "bundles run on the CPU; leave .cuda() and device=... out",
    "CUDA enabled": "bundles run on the CPU; leave .cuda() and device=... out",
    "require grad": _NO_GRADIENTS,
    "wrap_with_set_grad_enabled": _NO_GRADIENTS,
    "Can't pickle": "it pickles or saves traced tensors; do that outside of the method",
    "maximum recursion depth": "it calls itself without an end",
    "UnsupportedOperatorException": "torch has no rule to trace this operator by",
}


Bounds = Mapping[TablePlace, Bound]


@dataclass(frozen=True, slots=True)
class CapturedMethod:
    """A traced method.

    Attributes:
        method: as the user declared it, but with the `dynamic` axes of the trace, which
            include the lifted buffers; their paths are `kvc_states[0]` and so on.
        arguments: the examples of the trace, by parameter name.
        lifted: the buffers that are inputs after the arguments, in order.
        exported: the trace in functional form: mutations are outputs.
        observed: how the method accessed the model's memory.
        bounds: place of a table in memory -> the greatest norm of its rows, to which
            lookups shorten longer rows.
    """

    method: Method
    arguments: Mapping[str, object]
    lifted: tuple[Lifted, ...]
    exported: FunctionalProgram
    observed: Observed
    bounds: Bounds


def capture(
    model: nn.Module, method: Method, states: Sequence[StateSpec] = ()
) -> CapturedMethod:
    """Trace one method.

    Args:
        model: the module; it is unchanged afterwards.
        method: the method and its example arguments.
        states: buffers whose size is chosen when a session is opened; they are traced
            as inputs.

    Raises:
        CaptureError: the method cannot be traced; the error names the line and a
            remedy.
        CompileError: a spec does not fit the model.
    """
    lifted = lifted_buffers(model, states)
    traced = traced_method(model, method, lifted)
    with _ONE_AT_A_TIME, shadowed_forward(model, method, lifted) as observed:
        exported, bounds = _export(model, traced, observed)
    return CapturedMethod(
        traced.method, traced.arguments, lifted, exported, observed, bounds
    )


def _export(
    model: nn.Module, traced: Traced, observed: Observed
) -> tuple[FunctionalProgram, Bounds]:
    asked: list[Question] = []
    with noted_constants() as fixed:
        try:
            return _attempt(model, traced, asked)
        except CaptureError:
            raise
        except Unwritable as error:
            if isinstance(error, WritesConstant):
                _refuse_overlaps(model, traced.method.name, observed)
            place = at_source_of(error.meta)
            raise CaptureError(
                method=traced.method.name, place=place, reason=str(error)
            ) from error
        except Exception as error:
            check_interrupts()  # native code may have replaced one by this error
            refuse_fixed(traced.method, traced.lifted, fixed, asked, error)
            raise _translated(traced, error, observed.sizes) from error


def _attempt(
    model: nn.Module, traced: Traced, asked: list[Question]
) -> tuple[FunctionalProgram, Bounds]:
    """Export a method; if that fails, export the method again with weaker checks.

    The conditions on sizes that the model's code evaluates are added to `asked`.
    """
    try:
        return _trace(model, traced, asked)
    except Exception as error:
        if not any(part in str(error) for part in _OF_SIZES):
            raise
        # To know whether a slice is contiguous, torch asks whether it covers its whole
        # axis. It can do without the answer, but then asks whether a size is 1. It may
        # fail to prove the remaining conditions, such as n // 2 <= n; kvc checks these
        # itself.
        for deferred in (False, True):
            logger.info("method %s: tracing again, fewer questions", traced.method.name)
            try:
                return _trace(model, traced, [], oblivious=True, deferred=deferred)
            except Exception as another:
                check_interrupts()
                if getattr(another, "place", "") and not traced.lifted:
                    raise
        raise error


def _trace(
    model: nn.Module,
    traced: Traced,
    asked: list[Question],
    oblivious: bool = False,
    deferred: bool = False,
) -> tuple[FunctionalProgram, Bounds]:
    # Without "duck shapes", two Dims stay two symbols if their examples are equal.
    settings = symbol_settings.patch(  # type: ignore[attr-defined]
        use_duck_shape=False, backed_size_oblivious=oblivious
    )
    method, inputs = traced.method, traced.inputs
    # Clear bodies that torch has cached: this trace would take their old sizes.
    torch._dynamo.reset()
    shapes = examples.torch_dynamic_shapes(inputs, method)
    patched = (
        *(writes_traced(), lines_kept(), quiet()),
        *(work_once(), interruptible()),
    )
    with torch.no_grad(), settings, ExitStack() as stack:
        for each in patched:
            stack.enter_context(each)
        with noted_questions(asked), noted_lookups() as lookups:
            exported = torch.export.export(
                model,
                (),
                dict(inputs),
                dynamic_shapes=shapes,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=deferred,
            )
        check_questions(method, inputs, exported, [*asked, *asserted(exported)])
        bounds = bounds_of(method.name, exported, lookups)

        sizes = dims_of(method, inputs, exported)
        made = functional(exported, decompositions(), KEPT_WHOLE, sizes)
        without_complex(method.name, made)
        return made, bounds


hold_interrupts(_trace.__code__, below_torch)


def _refuse_overlaps(model: nn.Module, method: str, observed: Observed) -> None:
    """Raise an error if two tensors of a model lie over the same bytes."""
    for name, place in observed.missed.items():
        raise unseen(method, name, place)
    named = tensors_of(model)
    for name, tensor in named.items():
        for other in overlapping(tensor, named):
            reason = (
                f"it shares memory with {other!r} in another shape or place, which "
                "cannot be traced; keep one buffer and take views of it in the code"
            )
            raise StateConflict(state=name, reason=reason)


def _translated(
    traced: Traced, error: Exception, sizes_named: Mapping[str, str]
) -> CaptureError:
    """Convert an error of the trace to a paragraph with advice and a source line."""
    text = _SIZE.sub(lambda s: sizes_named.get(s[0], s[0]), words_of(error))
    advice = [known for part, known in _ADVICE.items() if part in text]
    if traced.lengthened:
        sizes = ", ".join(f"{dim} = {size}" for dim, size in traced.lengthened.items())
        advice.append(
            "examples with sizes 0 or 1 are made longer, since torch takes these for "
            f"constants; here {sizes}: give examples of 2 or more that fit each other"
        )
    reason, place = ". ".join([*advice, text]), place_of_failure(error)
    if _VIOLATED in text:
        return SizesRefused(
            method=traced.method.name,
            place=place,
            reason="the code does not hold for all declared sizes",
            advice=reason,
        )
    return CaptureError(method=traced.method.name, place=place, reason=reason)
