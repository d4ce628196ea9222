import functools
from collections import Counter

import pytest
import torch
from ir_samples import F32, method, node, value

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.backends.xnnpack import Xnnpack
from kvc.compiler.lower.cut_partitions import outline
from kvc.compiler.models import BUILTIN
from kvc.runtime import load
from kvc.schema.backends.operands import Operand
from kvc.schema.backends.xnnpack import why_not
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadOption
from kvc.schema.graph import Constant, Ref
from kvc.schema.ops import DELEGATE, OPS, Aliasing
from kvc.schema.uses import constants_of

RECIPES = ("xnnpack_fp32", "xnnpack_q8", "xnnpack_q4")
LAYERS = 3
LINEARS = 7 * LAYERS + 1


@functools.cache
def demo_program(recipe):
    """The first layers of the demo model."""
    demo = BUILTIN["demo"]()
    demo.model.layers = demo.model.layers[:LAYERS]
    methods = [m for m in demo.methods if m.role in ("prefill", "decode")]
    return compile_program(demo.model, methods, recipe).program


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def compiled(recipe):
    return demo_program(recipe)


def partitions(program, backend="xnnpack", methods=(0, 1)):
    """The code of each of a backend's delegates."""
    return [
        program.methods[one.method].blocks[one.block].graph
        for one in program.delegates
        if one.backend == backend and one.method in methods
    ]


def names_of(program, graph):
    return {program.names[i].name for i in constants_of(graph)}


def ops_of(graph):
    return Counter(step.op for step in graph.instructions)


def test_a_decoder_makes_one_call_a_layer_and_one_more(compiled):
    for number, each in enumerate(compiled.methods):
        assert len(partitions(compiled, methods=[number])) == LAYERS + 1
        assert {*ops_of(each.graph)} == {DELEGATE}


def test_rotary_embeddings_caches_and_views_are_what_a_layer_leaves_outside(compiled):
    """What else is outside runs once a step: embedding, position, rotary gather."""
    for number in range(len(compiled.methods)):
        left = partitions(compiled, "cpu", [number])
        assert len(left) == LAYERS + 1
        outside = sum(map(ops_of, left), Counter())
        assert outside.pop("kvc::cache_update") == 2 * LAYERS
        assert outside.pop("kvc::attention") == LAYERS
        assert outside.pop("kvc::rotary_embedding") == 2 * LAYERS
        assert (
            outside.pop("kvc::check_index") == LAYERS
        )  # each partition checks for itself
        rest = {
            op: n for op, n in outside.items() if OPS[op].aliasing is not Aliasing.VIEW
        }
        assert sum(rest.values()) <= 10
        assert max(rest.values()) < LAYERS
        assert "aten::clone" not in rest


def test_every_linear_is_inside(compiled, recipe):
    inside = sum((ops_of(graph) for graph in partitions(compiled)), Counter())
    op = {"xnnpack_fp32": "aten::linear", "xnnpack_q8": "kvc::linear_qd8"}
    assert inside[op.get(recipe, "kvc::linear_qb4")] in (2 * LINEARS, 2 * LINEARS - 2)
    linears = sum(n for o, n in inside.items() if "linear" in o)
    assert linears == 2 * LINEARS


def test_linears_of_one_input_share_its_quantization(compiled, recipe):
    inside = sum((ops_of(graph) for graph in partitions(compiled)), Counter())
    # Queries of a prompt's last layer are those of its last token, keys are of all.
    shared = 0 if recipe == "xnnpack_fp32" else 2 * (4 * LAYERS + 1) + 1
    assert inside["kvc::quantize_rows"] == shared


def test_what_crosses_a_border_is_float32(compiled):
    for graph in partitions(compiled):
        crossing = {graph.values[i].type.dtype for i in graph.inputs + graph.outputs}
        assert crossing == {DType.FLOAT32}


def test_both_methods_read_the_same_weights(compiled):
    prefill, decode = (
        {i for d in compiled.delegates if d.method == m for i in d.names}
        for m in (0, 1)
    )
    assert prefill == decode


def as_operand(graph, argument):
    if isinstance(argument, tuple):
        return tuple(as_operand(graph, item) for item in argument)
    if isinstance(argument, Ref):
        held = graph.values[argument.value]
        return Operand(held.type, isinstance(held.storage, Constant))
    return argument


def test_the_list_takes_every_node_of_every_partition(compiled):
    for graph in partitions(compiled):
        for step in graph.instructions:
            arguments = [as_operand(graph, a) for a in step.arguments]
            results = [graph.values[i].type for i in step.results]
            assert why_not(step.op, arguments, results) == ""


def test_the_arena_reaches_16_bytes_behind_what_a_partition_reads(compiled):
    tails = {d.backend: d.tail_nbytes for d in compiled.delegates}
    assert tails == {"xnnpack": 16, "cpu": 0}
    for each in compiled.methods:
        assert each.graph.scratch_nbytes >= each.graph.peak_nbytes + 16


def test_the_int4_recipe_keeps_a_tied_output_layer_in_the_embedding_s_int8_rows():
    program = demo_program("xnnpack_q4")
    last = partitions(program)[LAYERS]
    assert ops_of(last)["kvc::linear_qd8"] == 1
    kept = {"embed.weight.int8", "embed.weight.int8_scale"}
    assert kept <= names_of(program, last)
    names = {named.name for named in program.names}
    assert "embed.weight.int4" not in names
    assert "embed.weight" not in names
    kinds = {named.name: named.type for named in program.names}
    gate = "layers.0.ffn.gate.weight"
    assert str(kinds[f"{gate}.int4"]) == "uint8[88, 32, 8, 4]"
    assert str(kinds[f"{gate}.int4_scale"]) == "bfloat16[88, 8, 8]"


class Untied(torch.nn.Module):
    """An embedding, and an output layer of its own."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 32)
        self.head = torch.nn.Linear(32, 8)

    def forward(self, ids):
        return self.head(self.embed(ids))


def test_the_int4_recipe_makes_an_output_layer_of_its_own_int4():
    forward = Method("forward", args=(torch.zeros(2, 3, dtype=torch.int64),))
    program = compile_program(Untied(), [forward], "xnnpack_q4").program
    (graph,) = partitions(program)
    assert ops_of(graph)["kvc::linear_qb4"] == 1
    names = {named.name for named in program.names}
    assert {"embed.weight.int8", "head.weight.int4", "head.bias"} <= names


def test_a_model_without_products_is_left_to_the_other_backend(recipe):
    forward = Method("forward", args=(torch.ones(2, 4),))
    bundle = compile_program(torch.nn.RMSNorm(4), [forward], recipe)
    assert [partition.backend for partition in bundle.program.delegates] == ["cpu"]


class Products(torch.nn.Module):
    """Products other than linear layers, and a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.weight = torch.nn.Parameter(torch.ones(4, 5))

    def products(self, x, y):
        return x @ y, torch.bmm(x, y), torch.addmm(self.weight[0], x[0], self.weight)

    def images(self, x):
        return self.conv(x).relu()

    def sizes(self, x):
        seq = x.shape[1]
        return (x @ self.weight).view(2, seq, 5, 1).transpose(1, 2)[:, :, -1:]


def test_products_of_any_kind_are_worth_a_partition():
    x, y = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    methods = [
        Method("products", args=(x, y)),
        Method("images", args=(torch.ones(1, 3, 6, 6),)),
        Method("sizes", args=(x,), dynamic={"x": {1: Dim("seq", 2, 8)}}),
    ]
    program = compile_program(Products(), methods, "xnnpack_fp32").program
    assert [d.method for d in program.delegates] == [0, 1, 2]
    for each in program.methods:
        inside = [op for op in ops_of(each.graph) if op != DELEGATE]
        assert all(OPS[op].aliasing is Aliasing.VIEW for op in inside), inside


Q = (
    value(1, 2, 64, dtype=DType.INT8),
    value(2, 2, 1),
    value(3, 2, 1, dtype=DType.INT32),
)
P = (
    value(4, 2, 64, dtype=DType.INT8),
    value(5, 2, 1),
    value(6, 2, 1, dtype=DType.INT32),
)
X, Y = value(0, 2, 64), value(7, 2, 8)
W, S = value(8, 8, 64, dtype=DType.INT8), value(9, 8)
WEIGHTS = ((W, "w"), (S, "s"))


def quantized(*nodes, outputs=(Y,), constants=WEIGHTS, inputs=(X,)):
    return method(*nodes, inputs=inputs, constants=constants, outputs=outputs)


QUANTIZE = node("kvc::quantize_rows", X, to=Q)
LINEAR = node("kvc::linear_qd8", *Q, W, S, None, to=Y)


def taken(step):
    return sorted(Xnnpack({}).supports(step))


def test_rows_are_taken_with_the_linears_that_read_them():
    assert taken(quantized(QUANTIZE, LINEAR)) == [0, 1]


def test_rows_that_somebody_else_reads_are_left_with_their_linears():
    other = node("aten::neg", Q[0], to=value(10, 2, 64, dtype=DType.INT8))
    assert taken(quantized(QUANTIZE, LINEAR, other)) == []
    assert taken(quantized(QUANTIZE, LINEAR, outputs=(Y, Q[1]))) == []
    scale_too = node("aten::neg", Q[1], to=value(10, 2, 1))
    product = node("aten::mm", Y, value(11, 8, 3), to=value(12, 2, 3))
    step = quantized(QUANTIZE, LINEAR, scale_too, product, inputs=(X, value(11, 8, 3)))
    assert taken(step) == [2, 3]


def test_rows_are_left_with_all_their_linears_if_one_of_them_is():
    held, scale = value(20, 8, 64, dtype=DType.INT8), value(21, 8)
    unable = node("kvc::linear_qd8", *Q, held, scale, None, to=value(22, 2, 8))
    step = quantized(QUANTIZE, LINEAR, unable, inputs=(X, held, scale))
    assert taken(step) == []


def test_a_linear_of_rows_from_elsewhere_is_left():
    assert taken(quantized(LINEAR, inputs=Q)) == []
    second = node("kvc::quantize_rows", X, to=P)
    mixed = node("kvc::linear_qd8", Q[0], P[1], Q[2], W, S, None, to=Y)
    assert taken(quantized(QUANTIZE, second, mixed)) == []
    swapped = node("kvc::linear_qd8", P[0], P[1], P[2], W, S, None, to=Y)
    assert taken(quantized(QUANTIZE, second, swapped)) == [0, 1, 2]


def test_no_border_runs_between_rows_and_their_linears():
    """Another way of more depth leads from x to the second linear's sum."""
    far = [value(i, 2, 8) for i in range(30, 35)]
    step = quantized(
        QUANTIZE,
        node("aten::slice.Tensor", X, 1, 0, 8, 1, to=far[0]),
        node("aten::neg", far[0], to=far[1]),
        node("aten::cumsum", far[1], 0, to=far[2]),
        LINEAR,
        node("aten::add.Tensor", far[2], Y, 1, to=far[3]),
        node("kvc::linear_qd8", *Q, W, S, None, to=far[4]),
        outputs=(far[3], far[4]),
    )
    outlined = outline(step, Xnnpack({}).supports(step), 0, {}, {})
    ops = [Counter(n.op for n in p.graph.nodes) for p in outlined.partitions]
    assert [p["kvc::quantize_rows"] for p in ops] == [1, 0]
    assert [p["kvc::linear_qd8"] for p in ops] == [2, 0]
    for partition in outlined.partitions:
        crossing = (*partition.graph.inputs, *partition.graph.outputs)
        assert {v.type.dtype for v in crossing} == {F32}


def test_an_option_that_it_does_not_have_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[backend]\nname = "xnnpack"\n[backend.options]\nlevel = 3')
    forward = Method("forward", args=(torch.ones(2, 4),))
    with pytest.raises(BadOption, match="option 'level': expected no options"):
        compile_program(torch.nn.Linear(4, 4), [forward], str(path))


class Planes(torch.nn.Module):
    """Convolves, pools and resizes planes; says where the greatest elements were."""

    def __init__(self, places):
        super().__init__()
        self.places = places
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.batches = torch.nn.BatchNorm2d(8)
        self.groups = torch.nn.GroupNorm(2, 8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        y = self.batches(self.convolution(x)).relu()
        y, places = torch.nn.functional.max_pool2d(y, 2, return_indices=True)
        y = torch.nn.functional.interpolate(self.groups(y), scale_factor=2.0)
        y = torch.nn.functional.avg_pool2d(y, (2, 4))
        y = torch.nn.functional.interpolate(y, (5, 7), mode="bilinear")
        y = torch.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)
        return self.linear(y), places if self.places else y.std(1)


@pytest.mark.parametrize("places", [False, True])
def test_planes_stay_inside_but_for_pools_whose_indices_are_read(tmp_path, places):
    torch.manual_seed(0)
    model = Planes(places).eval()
    methods = [Method("forward", args=(torch.randn(2, 3, 8, 8),))]
    bundle = compile_program(model, methods, "xnnpack_fp32")
    bundle.save(tmp_path / "planes.kvc")
    x = torch.randn(2, 3, 8, 8)
    inside = sum(map(ops_of, partitions(bundle.program)), Counter())
    with load(tmp_path / "planes.kvc") as program:
        found = program.forward(x.numpy())
    left = {"aten::max_pool2d_with_indices"} if places else set()
    wanted = {
        *("aten::batch_norm", "aten::group_norm", "aten::max_pool2d_with_indices"),
        *("aten::upsample_nearest2d", "aten::upsample_bilinear2d", "aten::avg_pool2d"),
    }
    assert wanted & {*inside} == wanted - left
    for ours, theirs in zip(found, model(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), theirs, rtol=1e-4, atol=1e-5)


def test_a_transposed_convolution_is_a_product_to_take_nodes_for():
    layer = torch.nn.ConvTranspose2d(2, 3, 4, stride=2).eval()
    method = Method("forward", (torch.ones(1, 2, 5, 5),))
    bundle = compile_program(layer, [method], "xnnpack_fp32")
    (method,) = bundle.program.methods
    assert [step.op for step in method.graph.instructions] == ["kvc::delegate"]
