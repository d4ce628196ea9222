"""Refuse access to the memory of a state that no trace follows, naming it and a remedy.

In: what was observed while the methods were traced, and which tensors are states. Two
methods may contradict each other here, so this runs after all are traced.
"""

from collections.abc import Sequence

from kvc.compiler.ingest.tensors import TensorTable
from kvc.compiler.trace import CapturedMethod
from kvc.compiler.trace.guard import unseen
from kvc.schema.errors import CaptureError, StateConflict


def check_reached(captured: Sequence[CapturedMethod], tensors: TensorTable) -> None:
    """Check that what methods reach of states is what the traces say.

    Raises:
        StateConflict: a method reads the memory of a state in a way that is not traced,
            or might.
        CaptureError: one assigns a buffer anew that is reached elsewhere too.
    """
    for one in captured:
        for name, place in one.observed.missed.items():
            if tensors.state(tensors.named[name]) is not None:
                raise unseen(one.method.name, name, place)
        for name, path in one.observed.arrays.items():
            if tensors.state(tensors.named[name]) is not None:
                raise _array(name, path)
    kept = {n: path for one in captured for n, path in one.observed.aliases.items()}
    for one in captured:
        for name in one.observed.assigned:
            if name in kept:
                raise _apart(one.method.name, name, kept[name])


def _array(name: str, path: str) -> StateConflict:
    reason = (
        f"{path!r} is a numpy array over its memory, and what a method reads there no "
        "trace sees; keep a tensor, or make the array where it is needed"
    )
    return StateConflict(state=name, reason=reason)


def _apart(method: str, name: str, path: str) -> CaptureError:
    other = repr(path) if path else "a tensor that is kept outside of the model"
    reason = (
        f"it assigns the buffer {name!r} anew, so that {other}, which is the same "
        "memory and is used as well, would keep the old value; write into the buffer "
        "instead, with copy_(...)"
    )
    return CaptureError(method=method, place="", reason=reason)
