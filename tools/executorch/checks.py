"""Check what a `.pte` file says of itself: what it names is there, and has room."""

from typing import Final

from kvc.schema.errors import LimitExceeded
from kvc.tools.executorch.contents import UNBOUND, Pte, PteMethod
from kvc.tools.executorch.tables import Buffer

_MOST_SHOWN: Final = 16_000_000  # items and letters of all that calls of a method name


def check_data(found: Pte, buffer: Buffer) -> None:
    """Check that names of methods differ, segments are there, and sizes add up.

    Raises:
        BadStructure: they are not, or do not.
    """
    names = {method.name for method in found.methods}
    if len(names) < len(found.methods):
        buffer.fail(0, "two methods have the same name")
    used = [segment for _, segment in found.named] + [*found.mutable_segments]
    if found.constant_segment is not None:
        used.append(found.constant_segment)
    for one in used:
        if one >= len(found.segments):
            buffer.fail(0, f"segment {one} is not there")
    if found.tables_nbytes < 0:
        buffer.fail(0, "constants or payloads in the program overlap")


def check_method(method: PteMethod, buffer: Buffer) -> None:
    """Check that all that names a value names one, and that memory is as large.

    Raises:
        BadStructure: there is no such value, or no such memory.
        LimitExceeded: calls name more than can be told.
    """
    count = len(method.values)
    named = [*method.inputs, *method.outputs]
    named += [arg for call in method.calls for arg in call.args]
    named += [item for value in method.values for item in value.items if item != -1]
    for value in named:
        if not 0 <= value < count:
            buffer.fail(0, f"value {value} of method {method.name!r} is not there")
    _check_shown(method, buffer)
    if any(nbytes < 0 for nbytes in method.buffers):
        buffer.fail(0, f"memory of method {method.name!r} has a negative size")
    for index, one in enumerate(method.values):
        if one.tensor and one.tensor.memory and one.tensor.dynamism != UNBOUND:
            number, offset = one.tensor.memory
            fits = number < len(method.buffers)
            if not fits or offset + one.tensor.nbytes > method.buffers[number]:
                what = (
                    f"value {index} of method {method.name!r} lies outside its memory"
                )
                buffer.fail(0, what)


def _check_shown(method: PteMethod, buffer: Buffer) -> None:
    """Check that calls do not name long lists and texts more often than can be told.

    Raises:
        LimitExceeded: they do; a small file could name one list a million times.
    """
    values = [1 + len(v.items) + len(v.text) for v in method.values]
    names = {
        "kernel": [len(name) for name in method.operators],
        "delegate": [len(one.backend) for one in method.delegates],
    }
    found = sum(values[arg] for arg in (*method.inputs, *method.outputs))
    for call in method.calls:
        found += sum(values[arg] for arg in call.args)
        if call.kind in names:
            found += names[call.kind][call.what]
    if found > _MOST_SHOWN:
        what = "the length of all that calls of a method name"
        raise LimitExceeded(path=buffer.path, what=what, found=found, limit=_MOST_SHOWN)
