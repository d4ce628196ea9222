"""Call methods with arrays that have the names of their inputs.

In: arrays, a program. Out: calls of each method that is given all of its inputs, by
turns, on one session, so that states are as they are in use.
"""

import json
from collections.abc import Mapping

from kvc.runtime.calibration.array_files import Arrays
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.program import Program
from kvc.schema.container import Progress
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSamples, ExecutionError, listing, shortened
from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.trees import unflatten
from kvc.schema.types import TensorType


@frozen
class _Calls:
    """The calls of a method: what its inputs are in each.

    Attributes:
        method: that is called.
        given: [calls, ...] for each of its inputs.
    """

    method: Method
    given: tuple[Array, ...]

    def arguments(self, call: int) -> dict[str, object]:
        """Return the arguments of a call; the last array goes on."""
        leaves = [array[min(call, len(array) - 1), ...] for array in self.given]
        tree = json.loads(self.method.input_tree)["arguments"]
        return {name: unflatten(json.dumps(one), leaves) for name, one in tree}


def call_with(arrays: Arrays, program: Program, progress: Progress) -> int:
    """Make the calls, and return how many of each method.

    Raises:
        BadSamples: an array is not for this program, or a method lacks one.
        KvcError: as `Session.call`.
    """
    calls = _calls_of(arrays, program)
    count = max(len(array) for one in calls for array in one.given)
    for one in calls:
        for name, array in zip(one.method.input_names, one.given, strict=True):
            if len(array) not in (1, count):
                reason = (
                    f"input {name} of method {one.method.name} has {len(array)} "
                    f"samples, another one {count}"
                )
                raise BadSamples(source=arrays.source, reason=reason)
    with program.session() as session:
        for turn in range(count):
            progress("calibrate", turn, count, f"call {turn + 1} of {count}")
            for one in calls:
                try:
                    session.call(one.method.name, **one.arguments(turn))
                except ExecutionError as error:
                    reason = f"sample {turn}: {error}"
                    raise BadSamples(source=arrays.source, reason=reason) from error
    return count


def _calls_of(arrays: Arrays, program: Program) -> list[_Calls]:
    known: dict[str, TensorType] = {}
    calls, used = list[_Calls](), set[str]()
    for method in program.methods.values():
        types = _input_types(method)
        known |= {f"{method.name}.{name}": kind for name, kind in types.items()}
        found = _found(arrays.by_name, program, method)
        used |= set(found.values())
        if not found:
            continue
        lacking = [name for name in types if name not in found]
        if lacking:
            reason = f"method {method.name} also has the inputs {listing(lacking)}"
            raise BadSamples(source=arrays.source, reason=reason)
        given = tuple(
            _stacked(arrays, found[name], kind) for name, kind in types.items()
        )
        calls.append(_Calls(method, given))
    unknown = sorted(arrays.by_name.keys() - used)
    if unknown or not calls:
        shown = shortened([repr(name) for name in unknown])
        reason = (
            f"no input is called {shown}; inputs, with their methods, are "
            f"{shortened([*known])}"
        )
        raise BadSamples(source=arrays.source, reason=reason)
    return calls


def _input_types(method: Method) -> dict[str, TensorType]:
    graph = method.graph
    types = [graph.values[value].type for value in graph.inputs]
    return dict(zip(method.input_names, types, strict=True))


def _found(
    by_name: Mapping[str, Array], program: Program, method: Method
) -> dict[str, str]:
    """Return which array is which input of a method: the longer name comes first."""
    found = {}
    for name in method.input_names:
        spelled = [f"{method.name}.{name}", name]
        if len(program.methods) == 1 and len(method.input_names) == 1:
            spelled.append("")
        match = next((one for one in spelled if one in by_name), None)
        if match is not None:
            found[name] = match
    return found


def _stacked(arrays: Arrays, name: str, kind: TensorType) -> Array:
    """Return an array as [calls, ...].

    Raises:
        BadSamples: it is of another dtype, or has other axes than the input.
    """
    array = arrays.by_name[name]
    rank = len(kind.dims)
    if DType.from_numpy(array.dtype) is kind.dtype and array.ndim in (rank, rank + 1):
        return array if array.ndim > rank else array[None]
    reason = (
        f"array {name!r} is {array.dtype} {list(array.shape)}; the input is {kind}, "
        "and one axis more is that of samples"
    )
    raise BadSamples(source=arrays.source, reason=reason)
