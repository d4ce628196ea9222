"""IR written by hand: short constructors, and programs of a method or two."""

from torch import Tensor

from kvc.compiler.ir import Argument, Constant, Method, Node, Program, State, Value
from kvc.compiler.weights.sources import TensorSource
from kvc.schema.dtypes import DType
from kvc.schema.types import Dim, TensorType

F32, I64 = DType.FLOAT32, DType.INT64
CACHE = (1, 8, 4)


def value(key: int, *dims: Dim, dtype: DType = F32) -> Value:
    return Value(key, TensorType(dtype, dims))


def node(op: str, *arguments: Argument, to: Value | tuple[Value, ...]) -> Node:
    outputs = to if isinstance(to, tuple) else (to,)
    return Node(op, arguments, outputs, f"model:{outputs[0].id}")


def method(*nodes, inputs=(), outputs=(), name="step", **pairs) -> Method:
    """Return a method of some nodes.

    `pairs` has its `constants`, `state_in`, `state_out` and `input_out`.
    """
    names = tuple(f"x{v.id}" for v in inputs)
    kinds = ("constants", "state_in", "state_out", "input_out")
    named = {kind: pairs.pop(kind, ()) for kind in kinds}
    assert not pairs
    texts = {"role": "", "position": "", "input_tree": "", "output_tree": ""}
    ends = {"inputs": inputs, "input_names": names, "outputs": outputs}
    return Method(name=name, nodes=nodes, **texts, **ends, **named)


def program(*methods, symbols=(), constants=(), states=(), shape=CACHE) -> Program:
    """Return a program whose states are all float32 caches of one shape."""
    cache = TensorType(F32, shape)
    made = tuple(State(name, cache, None) for name in states)
    return Program(symbols, constants, made, methods)


def constant(name: str, tensor: Tensor, provenance: str = "parameter") -> Constant:
    kind = TensorType(DType[str(tensor.dtype)[6:].upper()], tuple(tensor.shape))
    return Constant(name, kind, TensorSource(tensor), provenance)
