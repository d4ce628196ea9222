"""Which operators backends run, and the reasons why others are left to PyTorch."""

import json
from dataclasses import replace

import pytest
import torch
from sample_programs import sample_program
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.schema.backends.known import why_apart, why_left
from kvc.schema.dtypes import DType
from kvc.schema.left import left_of
from kvc.schema.types import TensorType
from kvc.tools.reports.methods import backends_offered, describe_operators

NARROW = "it takes no tensors of bfloat16"
ALONE = '[linear]\nscheme = "{}"\n[backend]\nname = "xnnpack"\n'


class Sorting(nn.Module):
    """Sorts what a linear layer makes, and keeps a mean in a state."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(2, 4))

    def forward(self, x):
        y = self.linear(x)
        self.mean.copy_(self.mean * 0.5 + y)
        ordered, places = torch.sort(y.bfloat16())
        return ordered.float() + self.linear(self.mean), places.flip(0)


class Branching(nn.Module):
    """Sorts in one branch, and multiplies matrices in the other."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        sort = lambda x: torch.sort(x.bfloat16())[0].float()  # noqa: E731
        return torch.cond(x.sum() > 0, sort, self.linear, (x,))


def compiled(model, recipe):
    x = torch.arange(8.0).reshape(2, 4)
    return compile_program(model, [Method("forward", args=(x,))], recipe=recipe)


def rows_of(program):
    return [
        (one.backend, one.op, one.count, dict(one.reasons))
        for one in describe_operators(program)
    ]


@pytest.fixture
def alone(tmp_path):
    """A recipe whose only backend is xnnpack, by the scheme of its linear layers."""

    def write(scheme):
        path = tmp_path / f"{scheme}.toml"
        path.write_text(ALONE.format(scheme))
        return str(path)

    return write


def test_each_operator_says_who_runs_it_or_why_nobody_does():
    rows = rows_of(compiled(Sorting(), "cpu_fp32").program)
    assert ("cpu", "aten::linear", 2, {}) in rows
    left = [row for row in rows if not row[0]]
    assert left == [("", "aten::sort", 1, {"cpu": NARROW})]


def test_instructions_of_branches_are_counted():
    rows = rows_of(compiled(Branching(), "xnnpack_fp32").program)
    reasons = {"xnnpack": "it has no kernel of aten::sort", "cpu": NARROW}
    assert ("xnnpack", "aten::linear", 1, {}) in rows
    assert ("", "aten::sort", 1, reasons) in rows


def test_what_a_backend_may_not_write_has_a_reason(alone):
    rows = rows_of(compiled(Sorting(), alone("float32")).program)
    filling = {"xnnpack": "it fills a state while it reads it, which no partition may"}
    assert ("", "aten::add.Tensor", 1, filling) in rows
    assert ("", "aten::mul.Scalar", 1, filling) in rows


def test_a_method_without_a_product_has_its_reason(alone):
    class Bounded(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    reason = "there is no matrix product or convolution that it could make faster"
    rows = rows_of(compiled(Bounded(), alone("float32")).program)
    assert rows == [("", "aten::tanh", 1, {"xnnpack": reason})]


def test_a_method_without_a_product_has_that_reason_where_the_second_runs_it():
    class Adding(nn.Module):
        def forward(self, x):
            return x + x

    reason = "there is no matrix product or convolution that it could make faster"
    rows = rows_of(compiled(Adding(), "xnnpack_fp32").program)
    assert rows == [("cpu", "aten::add.Tensor", 1, {"xnnpack": reason})]


def test_without_a_backend_there_is_no_reason():
    class Bounded(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    rows = rows_of(compiled(Bounded(), "fp32").program)
    assert rows == [("", "aten::tanh", 1, {})]


def test_what_only_moves_elements_is_not_left_to_torch():
    class Stacking(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.zeros(2, 4))

        def forward(self, x):
            self.held.copy_(torch.stack([x[0] * 2, x[1] * 3]))
            return self.held + 1

    program = compiled(Stacking(), "cpu_fp32").program
    steps = program.methods[0].graph.instructions
    assert "aten::copy" in {step.op for step in steps}
    assert {backend for backend, *_ in rows_of(program)} == {"cpu"}
    assert left_of(program.methods[0]) == {}


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("kvc::append", "it appends to an array that is not a state"),
        ("kvc::after", "instructions outside of the backend read the position"),
        (
            "kvc::quantize_rows",
            "instructions outside of the backend also read its int8 rows",
        ),
        (
            "kvc::linear_qb4",
            "instructions outside of the backend also read its int8 rows",
        ),
        ("aten::clone", "it copies for partitions"),
        ("aten::index_copy", "it writes over memory that outlives the call"),
        ("aten::mul.Tensor", "it fills a state while it reads it"),
    ],
)
def test_what_cutting_leaves_outside_has_words(op, reason):
    assert reason in why_apart("cpu", op)


def test_what_the_second_backend_runs_has_the_reasons_of_the_first():
    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = nn.Linear(4, 4)

        def forward(self, x, places):
            return self.product(x) * torch.cos(places * 0.5)

    model, x = Angles(), torch.randn(2, 4)
    method = Method("forward", (x, torch.randn(2, 4)))
    rows = rows_of(compile_program(model, [method], "qnn_fp16").program)
    assert ("qnn", "aten::linear", 1, {}) in rows
    assert ("qnn", "aten::mul.Tensor", 1, {}) in rows
    assert ("cpu", "aten::cos", 1, {"qnn": "it does not run aten::cos"}) in rows
    exact = {"qnn": "no product feeds it, so it is kept exact"}
    assert ("cpu", "aten::mul.Scalar", 1, exact) in rows
    assert "not exactly one attention reads the updated cache" in why_apart(
        "qnn", "kvc::cache_update"
    )


def test_a_backend_of_another_package_has_rules_of_its_own():
    kind = TensorType(DType.FLOAT32, (2,))
    reason = why_left("theirs", "aten::tanh", (), [kind], used=True)
    assert reason == "a backend of another package chooses by rules of its own"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[backend]\nname = "xnnpack"\nrest = "cpu"\n', ("xnnpack", "cpu")),
        ('[backend]\nname = "cpu"\nrest = "cpu"\n', ("cpu",)),
        ("[backend]\nname = 3\n", ()),
        ("backend = 3\n", ()),
        ("no TOML", ()),
        ("a = " + "[" * 10_000, ()),
        ("", ()),
    ],
)
def test_the_recipe_in_a_file_says_who_was_offered_it(text, names):
    program = sample_program()
    origin = replace(program.provenance, recipe_text=text)
    assert backends_offered(replace(program, provenance=origin)) == names


def test_the_table_says_what_runs_where_and_why(kvc, tmp_path):
    path = tmp_path / "sorting.kvc"
    compiled(Sorting(), "cpu_fp32").save(path)
    lines = kvc("dump", path, "--delegates").stdout.splitlines()
    table = lines[lines.index("") + 1 :]
    assert table == [
        "  method   backend  instructions  operator, views left out",
        "  forward  cpu                 2  aten::_to_copy",
        "  forward  cpu                 2  aten::add.Tensor",
        "  forward  cpu                 2  aten::linear",
        "  forward  cpu                 1  aten::flip",
        "  forward  cpu                 1  aten::mul.Scalar",
        "",
        "  method   instructions  operator, left to PyTorch; why backends leave it",
        "  forward             1  aten::sort",
        f"      cpu: {NARROW}",
    ]
    found = json.loads(kvc("dump", path, "--delegates", "--json").stdout)
    assert list(found) == ["version", "delegates", "operators"]
    assert found["operators"][-1] == {
        "method": "forward",
        "op": "aten::sort",
        "backend": "",
        "count": 1,
        "reasons": {"cpu": NARROW},
    }
