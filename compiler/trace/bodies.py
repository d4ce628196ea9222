"""Trace the bodies of branches and loops under the same modes as their caller.

torch first reads the bytecode of a body, and would read the code of active modes too.
In: the modes of the trace. Out: a context that removes the modes while torch reads a
body, and restores them when torch calls the branch or loop operator with the captured
tensors. Function calls in the body are replaced as in the method (`rephrase_bodies`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._dynamo import config as dynamo_settings
from torch._higher_order_ops import utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.experimental.proxy_tensor import (
    TorchFunctionMetadataMode,
    _make_temp_remove_mode_context_manager,
)
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _pop_mode_temporarily

from kvc.compiler.decompose.replacements import rephrase_bodies
from kvc.compiler.trace.aliases import AliasMode
from kvc.compiler.trace.body_writes import bodies_of
from kvc.compiler.trace.guard import Guard

Compiler = Callable[..., Callable[..., object]]

_without_aliases = _make_temp_remove_mode_context_manager(AliasMode)


@contextmanager
def outside_of_bodies(aliases: AliasMode, guard: Guard) -> Iterator[None]:
    """Enter the modes, and suspend them whenever torch reads a body."""
    set_up = utils.setup_compilation_env

    @contextmanager
    def set_up_without() -> Iterator[Compiler]:
        # If a size is dynamic, torch cannot compute the strides of results: Max(1, n -
        # 1).
        known = dynamo_settings.patch(assume_static_by_default=True)
        # Clear the record of function calls with which torch names nodes. torch would
        # read that record with each body, each function as a variable; this is slow,
        # and for some functions torch finds no value.
        for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            if isinstance(mode, TorchFunctionMetadataMode):
                mode.tracer.torch_fn_metadata = None
                mode.tracer.torch_fn_counts = {}
        with _without_aliases(), _pop_mode_temporarily(), set_up() as compiler, known:
            yield _within(compiler, aliases, guard)

    patched = patch.object(utils, "setup_compilation_env", set_up_without)
    with patched, aliases, guard:
        yield


def _within(compiler: Compiler, aliases: AliasMode, guard: Guard) -> Compiler:
    """Return a compiler like `compiler`, whose compiled code runs under the modes."""

    def compiled(
        module: fx.GraphModule, *args: object, **kwargs: object
    ) -> Callable[..., object]:
        rephrase_bodies(module)
        run = compiler(module, *args, **kwargs)

        def within(*inputs: object) -> object:
            with ExitStack() as stack:
                stack.enter_context(aliases)
                stack.enter_context(guard)
                return run(*inputs)

        return within

    return compiled


# Pass constants that are made in bodies of branches and loops from outside.


_ops = torch.ops.higher_order
# The index of the argument that holds the captured tensors of all bodies.
_CAPTURED: Mapping[object, int] = {
    _ops.cond: 3,
    _ops.while_loop: 3,
    _ops.scan: 3,
    _ops.map_impl: 2,
}


def pass_constants(exported: ExportedProgram) -> None:
    """Turn each constant of a body into an input that the method passes to the body."""
    root = exported.graph_module
    passed = _pass_into_bodies(root, _names_taken(exported))
    if not passed:
        return
    for node in passed:
        _lift(exported, node)
    root.recompile()


def _names_taken(exported: ExportedProgram) -> set[str]:
    """Return the names that nodes and tensors of a method and its bodies have."""
    names = {*exported.state_dict, *exported.constants}
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                names |= {node.name, str(node.target)}
    return {name.replace(".", "_") for name in names}


def _pass_into_bodies(module: fx.GraphModule, taken: set[str]) -> list[fx.Node]:
    """Pass constants of the bodies that a module runs into those bodies.

    Return the nodes of the module that hold these constants. `taken` are the names in
    use.
    """
    passed: list[fx.Node] = []
    for node in [*module.graph.nodes]:
        if node.target in _CAPTURED:
            bodies = [*bodies_of(module, node)]
            for body in bodies:
                _pass_into_bodies(body, taken)
                passed += [
                    _pass(module, node, bodies, body, constant, taken)
                    for constant in _constants(body)
                ]
            for body in bodies:
                body.recompile()
    return passed


def _constants(body: fx.GraphModule) -> list[str]:
    names = [str(node.target) for node in body.graph.find_nodes(op="get_attr")]
    return [
        each
        for each in dict.fromkeys(names)
        if isinstance(getattr(body, each, None), Tensor)
    ]


def _pass(
    module: fx.GraphModule,
    node: fx.Node,
    bodies: list[fx.GraphModule],
    body: fx.GraphModule,
    constant: str,
    taken: set[str],
) -> fx.Node:
    """Pass a constant of one body of a node from the module that runs the body.

    All bodies of a node take the same inputs, so every body gets a new input. Return
    the node of the module that holds the constant.
    """
    tensor, name = getattr(body, constant), _unused(taken)
    setattr(module, name, tensor)
    with module.graph.inserting_before(node):
        outside = module.graph.get_attr(name)
    outside.meta["val"] = value = _fake(tensor, module)
    place = _CAPTURED[node.target]
    captured = node.args[place]
    assert isinstance(captured, tuple | list)
    node.update_arg(place, (*captured, outside))
    for each in bodies:
        inside = _added_input(each.graph, name)
        inside.meta["val"] = value
        if each is body:
            for own in each.graph.find_nodes(op="get_attr"):
                if own.target == constant:
                    own.replace_all_uses_with(inside)
                    each.graph.erase_node(own)
            delattr(body, constant)
    return outside


def _added_input(graph: fx.Graph, name: str) -> fx.Node:
    after = [node for node in graph.nodes if node.op != "placeholder"]
    with graph.inserting_before(after[0]):
        return graph.placeholder(name)


def _fake(tensor: Tensor, module: fx.GraphModule) -> Tensor:
    """Return a fake tensor of the type of a constant, in memory of its own."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode.from_tensor(tensor, static_shapes=True).clone()
    return FakeTensorMode().from_tensor(tensor, static_shapes=True).clone()


def _unused(taken: set[str]) -> str:
    """Return a name that no taken name ends with, since torch prefixes some names."""
    number = 0
    while any(name.endswith(f"constant_of_body_{number}") for name in taken):
        number += 1
    taken.add(name := f"constant_of_body_{number}")
    return name


def _lift(exported: ExportedProgram, node: fx.Node) -> None:
    """Make a constant of a method an input of the kind CONSTANT_TENSOR."""
    root, signature = exported.graph_module, exported.graph_signature
    target = str(node.target)
    with root.graph.inserting_before(next(iter(root.graph.nodes))):
        given = root.graph.placeholder(f"c_{target}")
    given.meta |= node.meta
    node.replace_all_uses_with(given)
    root.graph.erase_node(node)
    exported.constants[target] = getattr(root, target)
    delattr(root, target)
    signature.input_specs.insert(
        0,
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(given.name), target, None),
    )
