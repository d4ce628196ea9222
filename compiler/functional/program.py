"""Run a trace again, so that it has values in place of writes."""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy  # type: ignore[import-untyped]
import torch
from torch import SymInt, Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils._pytree import TreeSpec
from torch.utils._sympy.value_ranges import ValueRanges

from kvc.compiler.functional.by_size import SizesOf
from kvc.compiler.functional.contents import Symbolic, Table
from kvc.compiler.functional.control import LOST_IN_BODY, UPDATE, Within, control
from kvc.compiler.functional.recorder import Recorder
from kvc.compiler.functional.views import Unwritable

_READ = torch.ops.aten._local_scalar_dense.default
_READS = (torch.ops.aten.item.default, _READ)
_LOST = (
    "the result of cache_update is unused, and it changes none of its arguments; "
    "write it back: cache.copy_(torch.ops.kvc.cache_update(cache, ...))"
)
# Operators that run a block -> the number of their settings before the block.
_WRAPPERS = {"wrap_with_autocast": 4, "wrap_with_set_grad_enabled": 1}
# What a new node keeps of the traced node that it is computed for.
_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")


@dataclass(frozen=True, slots=True)
class FunctionalProgram:
    """A traced method without writes.

    Attributes:
        graph_module: the graph, with the bodies of branches and loops as attributes.
        graph_signature: what the inputs and results are; new contents of what is
            written come before the results.
        state_dict, constants: the tensors that inputs stand for, by name.
        range_constraints: torch's symbol -> the range of its values.
        nesting: how the results are nested in containers.
    """

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    state_dict: Mapping[str, object]
    constants: Mapping[str, object]
    range_constraints: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]
    nesting: TreeSpec

    @property
    def graph(self) -> fx.Graph:
        """Return the graph."""
        return self.graph_module.graph


def functional(
    exported: ExportedProgram,
    table: Table,
    kept: Collection[OpOverload],
    sizes: SizesOf,
) -> FunctionalProgram:
    """Return a trace in functional form, decomposed by a table.

    Args:
        exported: torch.export's trace, before it is decomposed.
        table: operator -> the function that takes it apart.
        kept: composite operators that stay whole.
        sizes: torch's symbols of the declared Dims.

    Raises:
        Unwritable: a write cannot be expressed; the error has the reason.
    """
    rules = (_mode_of(exported), table, kept, sizes)
    run = Run(exported.graph_module, rules)
    # Below autograd, composite operators arrive at the mode whole.
    whole = torch._C._AutoDispatchBelowAutograd()
    plain = torch.backends.mkldnn.flags(enabled=False)  # no operators of oneDNN
    with torch.no_grad(), enable_python_dispatcher(), whole, plain:
        returned, inputs = run.through()
        run.recorder.check_inputs()
        results = run.results(returned)
    made = {node.name: tensor for node, tensor in run.recorder.constants.items()}
    signature = _signature(run.recorder, exported, inputs, results)
    return FunctionalProgram(
        fx.GraphModule(run.root, run.recorder.graph),
        signature,
        exported.state_dict,
        {**exported.constants, **made},
        exported.range_constraints,
        exported.call_spec.out_spec,
    )


def _signature(
    recorder: Recorder,
    exported: ExportedProgram,
    inputs: Sequence[object],
    results: Sequence[object],
) -> ExportGraphSignature:
    """Give the graph its results, and return what its inputs and results are."""
    signature = exported.graph_signature
    names = [node.name for node in exported.graph.find_nodes(op="placeholder")]
    changed = [
        (name, recorder.place(tensor).memory.value)
        for name, tensor in zip(names, inputs, strict=True)
        if isinstance(tensor, Tensor) and recorder.is_written(tensor)
    ]
    specs = [_mutation(signature, name, node) for name, node in changed]
    given = zip(signature.output_specs, results, strict=True)
    specs += [_renamed(spec, node) for spec, node in given]
    contents: Any = (*(node for _, node in changed), *results)
    recorder.graph.output(contents)
    finish(recorder.graph, _LOST)
    lifted = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name, None)
        for node in recorder.constants
    ]
    return ExportGraphSignature([*signature.input_specs, *lifted], specs)


def _mode_of(exported: ExportedProgram) -> FakeTensorMode:
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return FakeTensorMode()


def _mutation(signature: ExportGraphSignature, name: str, node: fx.Node) -> OutputSpec:
    kinds = (
        (signature.inputs_to_buffers, OutputKind.BUFFER_MUTATION),
        (signature.inputs_to_parameters, OutputKind.PARAMETER_MUTATION),
    )
    for table, kind in kinds:
        if name in table:
            return OutputSpec(kind, TensorArgument(node.name), table[name])
    if name not in signature.user_inputs:
        raise WritesConstant
    return OutputSpec(OutputKind.USER_INPUT_MUTATION, TensorArgument(node.name), name)


def _renamed(spec: OutputSpec, node: object) -> OutputSpec:
    if not isinstance(node, fx.Node) or not hasattr(spec.arg, "name"):
        return spec
    named = cast(type[TensorArgument], type(spec.arg))(name=node.name)
    return OutputSpec(spec.kind, named, spec.target)


def finish(graph: fx.Graph, lost: str) -> None:
    """Remove nodes whose results nothing reads, apart from checks.

    Raises:
        Unwritable: a cache update is not used; `lost` is the reason.
    """
    for node in graph.nodes:
        if node.target is UPDATE and not node.users:
            raise Unwritable(lost, node.meta)
    for node in reversed(list(graph.nodes)):
        if node.op in ("placeholder", "output") or node.users:
            continue
        checks = isinstance(node.target, OpOverload) and not node.target._schema.returns
        if not checks and node.target is not _READ:
            graph.erase_node(node)


class WritesConstant(Unwritable):
    """A method writes into a tensor that is neither registered nor an argument."""

    def __init__(self) -> None:
        super().__init__(
            "it writes into a tensor that is not part of the model; make it a buffer "
            "with register_buffer"
        )


class Run:
    """One run of a graph: of a method, or of a body."""

    def __init__(
        self,
        module: fx.GraphModule,
        rules: tuple[FakeTensorMode, Table, Collection[OpOverload], SizesOf],
    ) -> None:
        self._module, self._rules = module, rules
        self.recorder = Recorder(*rules)
        self.root = torch.nn.Module()
        self._known: dict[fx.Node, object] = {}
        self._numbers: dict[fx.Node, fx.Node] = {}
        self._inputs: list[object] = []
        self._wholes: dict[int, object] = {}
        self._settings: Any = ()  # of torch.autocast

    def through(
        self, given: Sequence[object] = ()
    ) -> tuple[Sequence[object], Sequence[object]]:
        """Run all nodes; return the results, and the inputs.

        Inputs have the layouts of `given`, if there are any, else those of the trace.
        """
        layouts = given or [node.meta.get("val") for node in self._taken()]
        for node, layout in zip(self._taken(), layouts, strict=True):
            self._known[node] = self._input(node, layout)
        return self._run(), self._inputs

    def _run(self) -> Sequence[object]:
        """Run all nodes but the inputs; return the results."""
        returned: Sequence[object] = ()
        for node in self._module.graph.nodes:
            if node.op == "output":
                (returned,) = node.args
            elif node.op == "get_attr":
                self._known[node] = getattr(self._module, str(node.target))
            elif node.op == "call_function":
                self.recorder.meta = {k: v for k, v in node.meta.items() if k in _META}
                self._known[node] = self._called_here(node)
        return returned

    def _wrapped(self, node: fx.Node) -> object:
        """Run a block in which torch computes in another dtype, or with gradients."""
        count = _WRAPPERS[str(node.target)]
        settings, body, passed = (
            node.args[:count],
            node.args[count],
            node.args[count + 1 :],
        )
        inner = self.body(str(cast(fx.Node, body).target))
        inner.recorder, inner.root = self.recorder, self.root
        inner._settings = self._settings if count == 1 else settings
        for given, taken in zip(inner._taken(), passed, strict=True):
            inner._known[given] = self.known(taken)
            if taken in self._numbers:
                inner._numbers[given] = self._numbers[cast(fx.Node, taken)]
        return [inner.known(each) for each in inner._run()]

    def _taken(self) -> Sequence[fx.Node]:
        return self._module.graph.find_nodes(op="placeholder")

    def _called_here(self, node: fx.Node) -> object:
        try:
            return self._called(node)
        except Unwritable as error:
            error.meta = error.meta or {"stack_trace": node.meta.get("stack_trace")}
            raise

    def known(self, given: object) -> object:
        """Return the tensor or number of a traced node; any other object as it is."""
        value = self._known[given] if isinstance(given, fx.Node) else given
        return self.recorder.without_values(value)

    def content(self, given: object) -> object:
        """Return the node with the current content of a tensor; else the object."""
        return self.recorder.read(given) if isinstance(given, Tensor) else given

    def results(self, returned: Sequence[object]) -> list[object]:
        """Return the nodes of what a traced output names."""
        return [
            self._numbers.get(each) or self.content(self.known(each))
            if isinstance(each, fx.Node)
            else each
            for each in returned
        ]

    def body(self, name: str) -> "Run":
        """Return a run of a body of the module."""
        module = getattr(self._module, name)
        return Run(module, self._rules)

    def add_body(self, name: str, body: "Run", results: Sequence[object]) -> str:
        """Add a body that has run, with its results, to the module; return its name."""
        while hasattr(self.root, name):
            name += "_"
        contents: Any = tuple(results)
        body.recorder.graph.output(contents)
        finish(body.recorder.graph, LOST_IN_BODY)
        self.root.add_module(name, fx.GraphModule(body.root, body.recorder.graph))
        return name

    def _input(self, node: fx.Node, value: object) -> object:
        if isinstance(value, Within):
            return self._part(node, value)
        made = self.recorder.graph.placeholder(node.name)
        made.name = node.name  # which fx may have changed
        made.meta = {**node.meta}
        if isinstance(value, Tensor):
            value = made.meta["val"] = self.recorder.alike(value)
            self.recorder.add_input(value, made)
        else:
            self._numbers[node] = made
        self._inputs.append(value)
        return value

    def _part(self, node: fx.Node, part: Within) -> object:
        """Return an input that is a part of a memory, of which the whole is passed."""
        tensor = self._wholes.get(id(part.whole))
        if tensor is None:
            tensor = self._wholes[id(part.whole)] = self._input(node, part.whole)
        for place in part.path:
            assert place.view is not None
            args = [tensor, *place.view.args]
            tensor = self.recorder.view(place.view.op, args, {})
        return tensor

    def _called(self, node: fx.Node) -> object:
        """Return the results of a traced call, as tensors and numbers."""
        value, target = node.meta.get("val"), node.target
        if target is operator.getitem:
            whole, place = (self.known(each) for each in node.args)
            return whole[place]  # type: ignore[index]  # a list, and an index
        if isinstance(target, HigherOrderOperator):
            wraps = str(target) in _WRAPPERS
            return self._wrapped(node) if wraps else control(self, node)
        if not isinstance(target, OpOverload):
            return self._computed_number(node)
        known: Any = self._known.__getitem__
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known)
        if isinstance(value, Symbolic):
            target = _READ if target in _READS else target
            number = self.recorder.add(target, args, kwargs, value)
            self.recorder.number(value, number)
            self._numbers[node] = number
            return value
        if self._settings:
            with torch.autocast(*self._settings), self.recorder:
                return target(*args, **kwargs)
        made = self.recorder.call(target, args, kwargs)
        return self._laid_out_as(node, made, args, kwargs)

    def _computed_number(self, node: fx.Node) -> object:
        """Copy a node that computes with numbers."""
        known: Any = lambda one: self._numbers.get(one, self._known[one])  # noqa: E731
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known)
        target: Any = node.target
        made = self.recorder.graph.call_function(target, args, kwargs)
        made.meta = {**node.meta}
        value = node.meta.get("val")
        self._numbers[node] = made
        self.recorder.number(value, made)
        return value

    def _laid_out_as(
        self,
        node: fx.Node,
        made: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """Give results the layout that the operator gives, not that of its parts.

        Sizes that depend on values are those of the trace.
        """
        if "unbacked_bindings" in node.meta:
            return self._alike(made, node.meta["val"])
        recorder, target = self.recorder, node.target
        given = [recorder.without_values(each) for each in args]
        if not isinstance(made, Tensor) or recorder.is_within(made, given):
            return made
        if recorder.read(made).target is target:
            return made
        assert isinstance(target, OpOverload)
        whole = recorder.computed(target, given, kwargs)
        assert isinstance(whole, Tensor)
        if layout_of(made) == layout_of(whole):
            return made
        laid = recorder.alike(whole)
        recorder.own(laid, recorder.read(made))
        return laid

    def _alike(self, made: object, value: object) -> object:
        """Return results with the sizes and strides of others."""
        if isinstance(made, list | tuple) and isinstance(value, list | tuple):
            return [self._alike(a, b) for a, b in zip(made, value, strict=True)]
        if not isinstance(made, Tensor) or not isinstance(value, Tensor):
            return made
        if layout_of(made) == layout_of(value):
            return made
        return self.recorder.laid_out(made, value)


def layout_of(tensor: Tensor) -> tuple[object, ...]:
    """Return the sizes and strides of a tensor, as they are compared."""
    return tuple(map(_expression, (*tensor.shape, *tensor.stride())))


def _expression(size: int | SymInt) -> object:
    return size if isinstance(size, int) else size.node.expr
