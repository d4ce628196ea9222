"""Check that a program is well formed: SSA, types, names, arguments.

Run after every pass. A failure is a bug in kvc; the error names the method and the
node.
"""

from collections.abc import Iterator, Mapping, Sequence

from kvc.compiler.ir.arguments import argument_faults
from kvc.compiler.ir.control import blocks_by_number, control_faults, control_of
from kvc.compiler.ir.graph import Argument, Method, Node, Program, State, Value
from kvc.schema.dtypes import DType
from kvc.schema.ops import CONTROL_OPS, OPS, OpSpec
from kvc.schema.ops.spec import Concrete, ConcreteItem, Inferred, ShapeMismatch
from kvc.schema.types import Affine, Symbol, TensorType


class Malformed(Exception):
    """The program breaks a rule of the IR."""

    def __init__(
        self,
        method: str,
        node: Node | None,
        reason: str,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(reason)
        self.method, self.node, self.reason = method, node, reason
        self.sizes = dict(sizes or {})  # the sizes at which it breaks the rule, if any


class VerifiedNodes:
    """Nodes that have been found well formed, so that unchanged nodes are checked once.

    Whether a node's inputs are defined before the node depends on the node's position,
    so this class does not record it.
    """

    def __init__(self) -> None:
        self._samples: tuple[dict[str, int], ...] = ()
        # By identity; kept alive, so that ids stay unique.
        self._nodes: dict[int, Node] = {}

    def try_at(self, samples: tuple[dict[str, int], ...]) -> None:
        """Set the sizes at which nodes are checked; new sizes clear the nodes."""
        if samples != self._samples:
            self._samples = samples
            self._nodes.clear()

    def add(self, node: Node) -> None:
        """Add a node that is well formed."""
        self._nodes[id(node)] = node

    def __contains__(self, node: Node) -> bool:
        return id(node) in self._nodes


def verify(program: Program, known: VerifiedNodes | None = None) -> None:
    """Check every method of a program.

    Args:
        program: the program to check.
        known: nodes that were found well formed before; newly checked nodes are added.

    Raises:
        Malformed: a rule is broken; the error names the method, the node and the rule.
    """
    constants = {c.name: c.type for c in program.constants}
    states = {s.name: s for s in program.states}
    _check_unique("constants", [c.name for c in program.constants])
    _check_unique("states", [s.name for s in program.states])
    _check_unique("methods", [m.name for m in program.methods])
    samples = tuple(sample_sizes(program.symbols))
    known = known or VerifiedNodes()
    known.try_at(samples)
    for method in program.methods:
        _verify_method(method, constants, states, samples, known)
    _verify_blocks(program)


def sample_sizes(symbols: tuple[Symbol, ...]) -> Iterator[dict[str, int]]:
    """Yield symbol name -> size to check at: all least, all greatest, some between."""
    yield {s.name: s.lower for s in symbols}
    if symbols:
        yield {s.name: s.upper for s in symbols}
        for step in (3, 7):
            yield {
                s.name: min(s.upper, s.lower + step + i) for i, s in enumerate(symbols)
            }


def _check_unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Malformed("", None, f"{what} named twice: {twice}")


def _verify_method(
    method: Method,
    constants: Mapping[str, TensorType],
    states: Mapping[str, State],
    samples: tuple[dict[str, int], ...],
    known: VerifiedNodes,
) -> None:
    defined = _starts(method, constants, states)
    for node in method.nodes:
        for value in node.inputs:
            _check_use(method, node, defined, value)
        if node not in known:
            _verify_node(method, node, samples)
            known.add(node)
        for value in node.outputs:
            _define(method, node, defined, value)
    for value in method.results:
        _check_use(method, None, defined, value)
    _verify_ends(method, states)


def _verify_blocks(program: Program) -> None:
    """Check that one node runs each block, with operands and results that fit."""
    blocks, taken = blocks_by_number(program), list[int]()
    for method in program.methods:
        for node in method.nodes:
            control = control_of(node)
            if control is not None:
                taken += control.blocks
                for fault in control_faults(node, blocks):
                    raise Malformed(method.name, node, fault)
    if sorted(taken) != sorted(blocks):
        raise Malformed("", None, f"blocks {sorted(blocks)}, run are {sorted(taken)}")


def _starts(
    method: Method, constants: Mapping[str, TensorType], states: Mapping[str, State]
) -> dict[int, TensorType]:
    """Return value id -> type for values that are defined before the first node."""
    defined: dict[int, TensorType] = {}
    for value in method.inputs:
        _define(method, None, defined, value)
    for value, name in method.constants:
        if constants.get(name) != value.type:
            raise Malformed(method.name, None, f"%{value.id} is not the type of {name}")
        _define(method, None, defined, value)
    for value, name in method.state_in:
        if name not in states or not _is_of(value, states[name]):
            raise Malformed(method.name, None, f"%{value.id} is not the type of {name}")
        _define(method, None, defined, value)
    for value, slot in method.cursor_in:
        if value.type.dtype is not DType.INT64 or len(value.type.dims) > 1:
            what = f"%{value.id} is {value.type}, no {slot.field.name} of a cursor"
            raise Malformed(method.name, None, what)
        _define(method, None, defined, value)
    return defined


def _verify_ends(method: Method, states: Mapping[str, State]) -> None:
    """Check the types of the values that become contents of states or of inputs."""
    for value, name in method.state_out:
        if name not in states or not _is_of(value, states[name]):
            raise Malformed(method.name, None, f"%{value.id} cannot become {name}")
    inputs = {n: v.type for n, v in zip(method.input_names, method.inputs, strict=True)}
    for value, name in method.input_out:
        grown = method.block is not None  # a cache may grow in it
        if inputs.get(name) != value.type and not grown:
            raise Malformed(method.name, None, f"%{value.id} cannot become {name}")
    if method.position and method.position not in inputs:
        raise Malformed(method.name, None, f"there is no input {method.position}")


def _is_of(value: Value, state: State) -> bool:
    """Tell whether a value has the type of a state, with any size along `grows`."""
    if state.grows is None:
        return value.type == state.type
    dims, wanted = list(value.type.dims), list(state.type.dims)
    if len(dims) != len(wanted):
        return False
    dims[state.grows] = wanted[state.grows]
    return value.type.dtype is state.type.dtype and dims == wanted


def _define(
    method: Method, node: Node | None, defined: dict[int, TensorType], value: Value
) -> None:
    if value.id in defined:
        raise Malformed(method.name, node, f"%{value.id} is defined twice")
    defined[value.id] = value.type


def _check_use(
    method: Method, node: Node | None, defined: dict[int, TensorType], value: Value
) -> None:
    if defined.get(value.id) != value.type:
        raise Malformed(method.name, node, f"%{value.id} is used before it is defined")


def _verify_node(
    method: Method, node: Node, samples: tuple[dict[str, int], ...]
) -> None:
    spec = OPS.get(node.op)
    if spec is None:
        raise Malformed(method.name, node, f"unknown op {node.op}")
    if len(node.arguments) != len(spec.params):
        raise Malformed(method.name, node, "wrong number of arguments")
    for fault in argument_faults(spec, node.arguments):
        raise Malformed(method.name, node, fault)
    if node.op not in CONTROL_OPS:
        for sizes in samples:
            _check_shapes(method, node, spec, sizes)


def _check_shapes(
    method: Method, node: Node, spec: OpSpec, sizes: Mapping[str, int]
) -> None:
    try:
        inferred = spec.rule(*(concrete(a, sizes) for a in node.arguments))
    except ShapeMismatch as error:
        raise Malformed(method.name, node, str(error), sizes) from error
    declared = [(v.type.dtype, v.type.shape(sizes)) for v in node.outputs]
    fits = len(inferred) == len(declared) and all(
        shape == wanted and dtype in (None, kind)
        for (dtype, shape), (kind, wanted) in zip(inferred, declared, strict=True)
    )
    if not fits:
        reason = f"declares {_labels(declared)}, its rule gives {_labels(inferred)}"
        raise Malformed(method.name, node, reason, sizes)


def _labels(results: Sequence[Inferred]) -> str:
    """Return results as text, such as `float32[2, 1], [3]` if one dtype is unknown."""
    return ", ".join(
        f"{'' if dtype is None else dtype.label}{list(shape)}"
        for dtype, shape in results
    )


def concrete(argument: Argument, sizes: Mapping[str, int]) -> Concrete:
    """Return an argument with sizes in place of symbols, for the shape rules."""
    if isinstance(argument, tuple):
        return tuple(_concrete_item(item, sizes) for item in argument)
    return _concrete_item(argument, sizes)


def _concrete_item(item: Argument, sizes: Mapping[str, int]) -> ConcreteItem:
    if isinstance(item, Value):
        return TensorType(item.type.dtype, item.type.shape(sizes))
    if isinstance(item, Affine):
        return item.evaluate(sizes)
    assert not isinstance(item, tuple)
    return item
