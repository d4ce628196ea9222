"""States whose size a session chooses, and the symbols of these sizes.

In: the captured methods with the buffers that were lifted to inputs. Out: the types of
the states that these buffers become. It is also checked that all methods declare the
same bounds for a size.
"""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from kvc.compiler.ingest.states_and_constants import TensorTable, static_type
from kvc.compiler.ir import State
from kvc.compiler.trace import CapturedMethod
from kvc.schema.errors import CompileError
from kvc.schema.types import Affine, TensorType, symbols_in


def sized_types(
    captured: Sequence[CapturedMethod], named: Mapping[str, Tensor]
) -> dict[str, TensorType]:
    """Return buffer name -> type for each lifted buffer; declared Dims are symbols.

    Raises:
        CompileError: two methods declare different bounds for a Dim of a buffer.
    """
    types: dict[str, TensorType] = {}
    for one in captured:
        for lifted in one.lifted:
            kind = static_type(lifted.name, named[lifted.name])
            dims = list(kind.dims)
            for axis, dim in lifted.axes.items():
                dims[axis] = (
                    dim.upper if dim.lower == dim.upper else Affine(0, ((dim.name, 1),))
                )
            types[lifted.name] = TensorType(kind.dtype, tuple(dims))
    check_one_meaning(captured, symbols_in(types.values()))
    return types


def check_one_meaning(
    captured: Sequence[CapturedMethod], names: Collection[str]
) -> None:
    """Check that each size of a state has the same bounds wherever it is declared.

    Args:
        captured: all captured methods.
        names: names of the sizes of states: the name of a Dim, or "method.dim" if
            methods declare different bounds for that Dim.

    Raises:
        CompileError: methods declare different bounds for a size.
    """
    for name in sorted({name.rpartition(".")[2] for name in names}):
        bounds = {
            (dim.lower, dim.upper): one.method.name
            for one in captured
            for axes in one.method.dynamic.values()
            for dim in axes.values()
            if dim.name == name
        }
        if len(bounds) > 1:
            places = [f"{a}..{b} in method {m}" for (a, b), m in bounds.items()]
            message = (
                f"Dim {name} is a size of a state, which all methods share, but it is "
                f"declared {' and '.join(places)}; declare it once"
            )
            raise CompileError(message=message)


def check_written(captured: Sequence[CapturedMethod], tensors: TensorTable) -> None:
    """Check that each lifted buffer is written by at least one method.

    Raises:
        CompileError: no method writes some of the lifted buffers; the error names all
            of these buffers.
    """
    lifted = captured[0].lifted if captured else ()
    idle = [one for one in lifted if tensors.state(tensors.named[one.name]) is None]
    if idle:
        names = ", ".join(one.name for one in idle)
        message = (
            f"StateSpec {idle[0].pattern!r} matches {names}, which no method writes; "
            "a buffer that no method writes is not a state and has one size"
        )
        raise CompileError(message=message)


def buffer_states(captured: CapturedMethod, tensors: TensorTable) -> tuple[State, ...]:
    """Return the states of a method's lifted buffers, in the order of the buffers."""
    found = [tensors.state(tensors.named[one.name]) for one in captured.lifted]
    return tuple(state for state in found if state is not None)
