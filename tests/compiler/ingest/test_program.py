import re

import numpy as np
import pytest
import torch
from golden import assert_golden
from small_models import (
    Accumulator,
    BatchedTwoDims,
    MountedTwice,
    Nested,
    Unsupported,
)
from state_models import SameName
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.ingest import import_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.trace import capture
from kvc.runtime import load
from kvc.schema.errors import CaptureError, CompileError, StateConflict, UnsupportedOps
from kvc.schema.types import Symbol

X = torch.arange(12.0).reshape(1, 3, 4)


class Sizes(nn.Module):
    """Methods whose results have sizes that follow from their inputs'."""

    def double(self, x):
        return torch.cat([x, x], 1)

    def flat(self, x):
        return x.reshape(-1)

    def rows(self, x):
        flat = x.reshape(-1, 4)
        return torch.cat([flat, flat[1:]]).softmax(0)[: flat.shape[0]].view(x.shape)

    def square(self, x):
        return x.new_ones(x.shape[1] * x.shape[1])

    def second(self, x):
        return x[:, 1] * 2

    def length(self, x):
        return x * 2, x.shape[1]

    def root(self, x):
        return x / round(x.shape[1] / 3, 1)


class Function(nn.Module):
    """A function of one tensor."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Tensors(nn.Module):
    """A tied weight, a literal said twice, a table that is no parameter, a state."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("seen", torch.zeros(4), persistent=False)
        self.register_buffer("odd", torch.ones(4, dtype=torch.uint16))

    def write(self, ids):
        self.seen.add_(self.table * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        return self.head(self.embed(ids))

    def read(self, x):
        return self.seen + x * torch.tensor([1.0, 2.0, 3.0, 4.0])

    def strange(self, x):
        return x + self.odd.float()


def imported(model, *methods):
    return import_program(model, tuple(capture(model, m) for m in methods))


def sized(name, **axes):
    return Method(name, args=(X,), dynamic={"x": {1: Dim("seq", 1, 8)}} | axes)


def refusal(kind, model, *methods):
    with pytest.raises(kind) as caught:
        imported(model, *methods)
    return str(caught.value)


ADD_FIRST = Method("add", args=(torch.ones(3),))
WRITE = Method("write", args=(torch.tensor([1, 2]),))
READ = Method("read", args=(torch.ones(4),))


def test_a_program_reads_as_agreed():
    text = program_text(imported(Tensors(), WRITE, READ))
    assert_golden("import_tensors", text)


def test_a_tied_weight_is_one_constant():
    program = imported(Tensors(), WRITE)
    names = [c.name for c in program.constants if c.provenance == "parameter"]
    assert names == ["embed.weight"]


def test_a_buffer_that_one_method_writes_is_a_state_in_the_other():
    program = imported(Tensors(), READ, WRITE)
    assert [s.name for s in program.states] == ["seen"]
    assert [name for _, name in program.methods[0].state_in] == ["seen"]
    assert program.methods[0].state_out == ()


def test_a_buffer_that_no_method_writes_is_a_constant():
    program = imported(Tensors(), READ)
    assert program.states == ()
    assert "seen" in [c.name for c in program.constants]


def test_equal_literals_of_two_methods_are_one_after_the_passes():
    bundle = compile_program(Tensors(), [WRITE, READ])
    literals = [n for n in bundle.program.names if n.provenance == "literal"]
    assert len(literals) == 1


def test_a_buffer_and_an_argument_of_one_name_are_two_things():
    (step,) = imported(SameName(), Method("step", args=(torch.ones(4),))).methods
    assert step.input_names == ("k",)
    assert step.state_in[0][0] not in step.inputs


def test_a_module_mounted_twice_is_one_state():
    left, right = (Method(n, args=(torch.ones(3),)) for n in ("left", "right"))
    program = imported(MountedTwice(), left, right)
    assert [s.name for s in program.states] == ["first.total"]
    assert [m.state_out[0][1] for m in program.methods] == ["first.total"] * 2


def test_a_state_of_ones_has_an_initial_value_and_one_of_zeros_has_none():
    ones = imported(Accumulator(), Method("add", args=(torch.ones(3),)))
    assert ones.states[0].initial == "total.initial"
    zeros = imported(SameName(), Method("step", args=(torch.ones(4),)))
    assert zeros.states[0].initial is None


def test_a_state_of_negative_zeros_has_an_initial_value():
    model = SameName()
    model.k.copy_(torch.tensor(-0.0))
    program = imported(model, Method("step", args=(torch.ones(4),)))
    assert program.states[0].initial == "k.initial"


def test_a_state_whose_elements_share_memory_is_refused_with_the_remedy():
    model = Accumulator()
    model.total = torch.zeros(1).expand(3)
    message = refusal(StateConflict, model, Method("read"), ADD_FIRST)
    assert message.startswith("state total: a method writes it, and elements of it")
    assert "register a .clone() of it" in message
    model.total = model.total.clone()
    assert imported(model, ADD_FIRST).states[0].name == "total"


def test_a_dtype_that_kvc_does_not_have_is_refused_by_name():
    message = refusal(CompileError, Tensors(), Method("strange", args=(X,)))
    assert "odd has dtype torch.uint16" in message


def test_a_dim_of_equal_bounds_is_one_symbol_of_two_methods():
    program = imported(
        Sizes(), sized("double"), sized("second", x={1: Dim("seq", 2, 8)})
    )
    names = [s.name for s in program.symbols]
    assert names == ["double.seq", "second.seq"]
    program = imported(Sizes(), sized("double"), sized("double"))
    assert program.symbols == (Symbol("seq", 1, 8),)


def test_sizes_may_be_sums_and_multiples():
    program = imported(Sizes(), sized("double"))
    assert str(program.methods[0].outputs[0].type) == "float32[1, 2*seq, 4]"


def test_the_sum_of_two_dims_is_a_size():
    dynamic = {"x": {1: Dim("a", 1, 4)}, "y": {1: Dim("b", 2, 4)}}
    method = Method("join", args=(X, X), dynamic=dynamic)
    program = imported(BatchedTwoDims(), method)
    assert str(program.methods[0].outputs[0].type) == "float32[1, a+b, 4]"


TWO = {"x": {0: Dim("batch", 1, 4), 1: Dim("seq", 1, 8)}}


def test_the_product_of_two_dims_is_a_size():
    program = imported(Sizes(), sized("flat", **TWO))
    assert str(program.methods[0].outputs[0].type) == "float32[4*batch*seq]"


def test_rows_and_tokens_may_be_one_axis_and_two_again(tmp_path):
    compile_program(Sizes(), [sized("rows", **TWO)]).save(tmp_path / "m.kvc")
    x = torch.randn(3, 5, 4)
    with load(tmp_path / "m.kvc") as program:
        np.testing.assert_allclose(program.rows(x.numpy()), Sizes().rows(x), rtol=1e-6)


def test_a_power_of_a_dim_is_refused():
    message = refusal(UnsupportedOps, Sizes(), sized("square"))
    assert "no powers" in message


def test_code_that_holds_only_for_some_sizes_is_refused_with_its_line():
    message = refusal(CaptureError, Sizes(), sized("second"))
    assert re.search(r"at \S*test_program:\d+: aten::select.int does not hold", message)
    assert "with seq = 1" in message


def test_a_size_is_returned_as_a_number():
    (method,) = imported(Sizes(), sized("length")).methods
    assert method.output_tree == '{"tuple":[0,{"scalar":1}]}'
    assert str(method.outputs[1].type) == "int64[]"


def test_other_arithmetic_on_sizes_is_refused():
    message = refusal(UnsupportedOps, Sizes(), sized("root"))
    assert "a number computed from a size" in message


def test_every_op_without_a_kernel_is_listed_with_its_lines_and_nothing_else():
    method = Method("forward", args=(torch.ones(4, 4),))
    with pytest.raises(UnsupportedOps) as caught:
        imported(Unsupported(), method)
    ops = ["aten::histc", "aten::mode"]
    assert sorted(caught.value.facts["ops"]) == ops
    assert caught.value.facts["count"] == 2
    (mode,) = [line for line in str(caught.value).splitlines() if "::mode" in line]
    assert len(re.findall(r"forward: small_models:\d+", mode)) == 2


def test_a_key_that_is_no_text_is_refused():
    class Keys(nn.Module):
        def step(self, table):
            return table[0] * 1

    message = refusal(CaptureError, Keys(), Method("step", args=({0: X},)))
    assert "the key 0 is not text" in message


def test_nested_arguments_and_results_are_described():
    pair, rows = (torch.ones(2, 4), torch.ones(4)), [torch.ones(4)]
    kwargs = {"options": {"factor": 0.5, "rows": rows}, "flip": True}
    (mix,) = imported(Nested(), Method("mix", args=(pair,), kwargs=kwargs)).methods
    assert mix.input_names == ("pair[0]", "pair[1]", "options.rows[0]")
    assert len(mix.outputs) == 3


def test_sources_are_module_and_line_and_never_a_path():
    bundle = compile_program(Tensors(), [WRITE, READ], "xnnpack_q8")
    for method in bundle.program.methods:
        for step in method.graph.instructions:
            assert re.fullmatch(r"([\w.]+:\d+( \([\w.]+\))?)?", step.source)
    assert "/" not in str(bundle.program.methods)


@pytest.mark.parametrize("name", ["lu_factor", "ldl_factor"])
def test_ops_that_check_their_results_are_listed_with_their_lines(name):
    model = Function(getattr(torch.linalg, name))
    message = refusal(UnsupportedOps, model, Method("forward", (torch.eye(3),)))
    assert re.search(rf"linalg_{name}_ex .* in forward: \S*test_program:\d+", message)


def test_an_op_with_side_effects_is_named():
    check = torch.ops.aten._linalg_check_errors

    def checked(x):
        check(x.to(torch.int32), "mine", is_matrix=True)
        return x * 2

    message = refusal(UnsupportedOps, Function(checked), Method("forward", (X[0, 0],)))
    assert "aten::_linalg_check_errors (an operator with side effects" in message


INDEX = torch.tensor([0, 1])


@pytest.mark.parametrize("dynamic", [{}, {"x": {0: Dim("n", 1, 8)}}])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda x: x.index_add(0, INDEX, torch.ones(2, 3)),
            r"index_add does not accept its arguments: float32\[2, 3\] into float32\[",
        ),
        (
            lambda x: x.index_add(0, INDEX, torch.ones(2, 4, dtype=torch.float64)),
            r"index_add does not accept its arguments: float64\[2, 4\] into float32\[",
        ),
        (
            lambda x: x.index_put((INDEX,), torch.ones(3, 4)),
            r"index_put does not accept its arguments: cannot broadcast",
        ),
        (
            lambda x: x.index_select(0, INDEX[None]),
            "index_select .*: an index of 2 dims",
        ),
        (lambda x: x.softmax(4), "softmax.int .* axis 4 of a tensor with 2 dims"),
    ],
)
def test_a_call_that_is_wrong_at_every_size_is_refused_with_its_line(
    function, reason, dynamic
):
    method = Method("forward", (torch.ones(4, 4),), dynamic=dynamic)
    message = refusal(CaptureError, Function(function), method)
    assert re.search(rf"forward at \S*test_program:\d+ ?\S*: aten::{reason}", message)
    assert "Change shapes, dtypes or axes in this line" in message
