"""All exported programs of a model to one IR program."""

from collections.abc import Mapping

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    TensorArgument,
)

from kvc.compiler.capture import CapturedMethod
from kvc.compiler.capture.examples import parameter_names
from kvc.compiler.import_fx.method import MethodImporter, mutated_tensors
from kvc.compiler.import_fx.symbols import (
    declared_symbols,
    qualified_names,
    size_reader,
)
from kvc.compiler.import_fx.tensors import TensorTable
from kvc.compiler.ir import Method, Program
from kvc.compiler.ir.verify import Malformed, verify
from kvc.compiler.spec import tensors_of
from kvc.schema.errors import CaptureError, UnsupportedOps
from kvc.schema.trees import describe_call, flatten


def import_program(model: nn.Module, captured: tuple[CapturedMethod, ...]) -> Program:
    """Return the IR of all methods, with constants and states shared by identity.

    Raises:
        UnsupportedOps: with every op that has no kernel, and its source lines.
        CaptureError, StateConflict: see their texts.
    """
    named = tensors_of(model)
    mutated = [tensor for one in captured for tensor in mutated_tensors(one, named)]
    tensors = TensorTable(named, mutated)
    names = qualified_names(captured)
    missing: list[tuple[str, str, str, str]] = []
    methods = []
    for one in captured:
        method, unknown = _import_method(model, one, tensors, named, names)
        methods.append(method)
        missing += [(*item, one.method.name) for item in unknown]
    if missing:
        raise _unsupported(missing)
    program = Program(
        symbols=declared_symbols(captured, names),
        constants=(*tensors.constants.values(), *tensors.initial),
        states=tuple(tensors.states.values()),
        methods=tuple(methods),
    )
    _check_all_sizes(program)
    return program


def _check_all_sizes(program: Program) -> None:
    """Refuse code that holds only for some of the declared sizes.

    torch traces one size and keeps quiet about others, as for `x[:, 1]`.
    """
    try:
        verify(program)
    except Malformed as error:
        if not error.sizes or error.node is None:
            return  # a bug of ours, which the pass manager reports
        sizes = ", ".join(f"{name} = {size}" for name, size in error.sizes.items())
        place = f" at {error.node.source}" if error.node.source else ""
        reason = (
            f"{error.node.op} does not hold for all declared sizes; with {sizes}: "
            f"{error.reason}. Change the bounds of the Dim, or the code"
        )
        raise CaptureError(method=error.method, place=place, reason=reason) from error


def _import_method(
    model: nn.Module,
    captured: CapturedMethod,
    tensors: TensorTable,
    named: Mapping[str, Tensor],
    names: Mapping[tuple[str, str], str],
) -> tuple[Method, list[tuple[str, str, str]]]:
    try:
        tree, leaves, input_names = describe_call(
            parameter_names(model, captured.method),
            (),
            captured.arguments,
            lambda thing: isinstance(thing, Tensor),
        )
    except ValueError as error:
        raise CaptureError(
            method=captured.method.name, place="", reason=str(error)
        ) from error
    traced = _traced_inputs(captured, leaves, input_names)
    sizes = size_reader(captured, dict(zip(input_names, traced, strict=True)), names)
    importer = MethodImporter(captured, tensors, sizes)
    method = importer.run(named, input_names, (tree, _output_tree(captured)))
    return method, importer.missing


def _traced_inputs(
    captured: CapturedMethod, leaves: tuple[object, ...], names: tuple[str, ...]
) -> list[Tensor]:
    """Return the traced tensors of the inputs, checked to be in the order of names."""
    exported = captured.exported
    by_name = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    traced = [
        by_name[spec.arg.name].meta["val"]
        for spec in exported.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]
    ranks = [leaf.dim() for leaf in leaves if isinstance(leaf, Tensor)]
    if [tensor.dim() for tensor in traced] != ranks:
        reason = f"torch traced other inputs than {', '.join(names)}"
        raise CaptureError(method=captured.method.name, place="", reason=reason)
    return traced


class _Leaf:
    """Marks the place of a tensor in a structure."""


def _output_tree(captured: CapturedMethod) -> str:
    """Return how a method's results nest."""
    exported = captured.exported
    leaves = [
        _output_leaf(captured, spec.arg)
        for spec in exported.graph_signature.output_specs
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    spec = exported.call_spec.out_spec
    assert spec is not None
    structure = pytree.tree_unflatten(leaves, spec)
    try:
        return flatten(structure, lambda thing: isinstance(thing, _Leaf))[1]
    except ValueError as error:
        raise CaptureError(
            method=captured.method.name, place="", reason=str(error)
        ) from error


def _output_leaf(captured: CapturedMethod, argument: object) -> object:
    if isinstance(argument, TensorArgument):
        return _Leaf()
    if isinstance(argument, ConstantArgument):
        return argument.value
    reason = "it returns a number that differs from call to call; return a tensor"
    raise CaptureError(method=captured.method.name, place="", reason=reason)


def _unsupported(missing: list[tuple[str, str, str, str]]) -> UnsupportedOps:
    """Return one error that lists every op with its places."""
    places: dict[tuple[str, str], list[str]] = {}
    for op, reason, source, method in missing:
        places.setdefault((op, reason), []).append(f"{method}: {source}")
    lines = []
    for (op, reason), found in sorted(places.items()):
        unique = list(dict.fromkeys(found))
        more = f" and {len(unique) - 3} more places" if len(unique) > 3 else ""
        lines.append(f"  {op} ({reason}) in {'; '.join(unique[:3])}{more}")
    return UnsupportedOps(
        count=len(places), listing="\n".join(lines), ops=tuple(op for op, _ in places)
    )
