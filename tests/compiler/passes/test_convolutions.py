"""Norms, residuals and functions that become part of convolutions."""

from itertools import product

import pytest
import torch
from convolution_models import Calls, assert_equal_to_eager, nodes, ops
from daily import every
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method
from kvc.compiler.ingest import import_program
from kvc.compiler.ir import Program
from kvc.compiler.ir.text import program_text
from kvc.compiler.passes import run_passes
from kvc.compiler.passes.convolutions import EndConvolutions, FoldBatchNorms
from kvc.compiler.passes.redundancies import DedupeConstants, DropDeadCode
from kvc.compiler.trace import capture

PASSES = (
    DropDeadCode(),
    DedupeConstants(),
    FoldBatchNorms(),
    EndConvolutions(),
    DropDeadCode(),
)
X = torch.linspace(-2, 2, 300).sin().reshape(1, 6, 5, 10)
NORM, PLAIN, ENDED = "aten::batch_norm", "aten::convolution", "kvc::convolution"


def rewritten(model: nn.Module, x: Tensor) -> Program:
    """Return the program of a model after the passes."""
    captured = capture(model.eval(), Method("forward", (x,)))
    return run_passes(PASSES, import_program(model, (captured,)))[0]


def endings(program: Program) -> list[tuple[object, ...]]:
    """Return of each ended convolution: has it a residual; its function, its bounds."""
    found = [node.arguments for node in nodes(program) if node.op == ENDED]
    return [(each[3] is not None, *each[8:]) for each in found]


def with_statistics(model: nn.Module) -> nn.Module:
    """Return the model; its norms have random weights and statistics."""
    for each in model.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            each.running_mean.normal_()
            each.running_var.uniform_(0.1, 2)
            for parameter in each.parameters():
                nn.init.normal_(parameter)
    return model


def sequence(*modules: nn.Module) -> nn.Module:
    return with_statistics(nn.Sequential(*modules))


# Norms.


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize(("biased", "affine"), [*product([False, True], repeat=2)])
def test_a_norm_becomes_part_of_the_weights(tmp_path, biased, affine, groups):
    torch.manual_seed(0)
    conv = nn.Conv2d(6, 12, 3, bias=biased, groups=groups, padding=1)
    model = sequence(conv, nn.BatchNorm2d(12, affine=affine, eps=1e-2))
    assert ops(rewritten(model, X)) == [PLAIN]
    assert_equal_to_eager(model, tmp_path, X)


@pytest.mark.parametrize("given", ["weight", "bias"])
def test_a_norm_may_have_one_of_weight_and_bias(tmp_path, given):
    def call(self, x):
        mean, var, one = self.m1.running_mean, self.m1.running_var, self.m1.weight
        weight, bias = (one, None) if given == "weight" else (None, one)
        return functional.batch_norm(self.m0(x), mean, var, weight, bias)

    model = with_statistics(Calls(call, nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4)))
    assert ops(rewritten(model, X)) == [PLAIN]
    assert_equal_to_eager(model, tmp_path, X)


@pytest.mark.parametrize(
    ("conv", "norm", "shape"),
    [
        (nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5), (2, 3, 9)),
        (nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), (1, 2, 4, 5, 3)),
    ],
)
def test_norms_of_one_and_of_three_axes_are_folded_too(tmp_path, conv, norm, shape):
    torch.manual_seed(0)
    model, x = sequence(conv, norm), torch.randn(shape)
    assert ops(rewritten(model, x)) == [PLAIN]
    assert_equal_to_eager(model, tmp_path, x)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_kernel_with_two_norms_becomes_two(tmp_path, fresh):
    """Statistics of new norms are equal, so that they are one constant."""
    norms = nn.BatchNorm2d(6), nn.BatchNorm2d(6, eps=0.5), nn.BatchNorm2d(6)
    model = Calls(
        lambda self, x: self.m2(self.m0(self.m1(self.m0(self.m3(self.m0(x)))))),
        nn.Conv2d(6, 6, 1),
        *norms,
    )
    if fresh:
        nn.init.normal_(norms[0].weight)
        nn.init.normal_(norms[2].bias)
    else:
        with_statistics(model)
    program = rewritten(model, X)
    assert ops(program) == [PLAIN] * 3
    made = {name for name in (c.name for c in program.constants) if "folded" in name}
    assert len(made) == 6
    assert_equal_to_eager(model, tmp_path, X)


def test_equal_layers_share_what_is_made_of_them():
    model = Calls(
        lambda self, x: self.m1(self.m0(self.m1(self.m0(x)))),
        nn.Conv2d(6, 6, 1),
        nn.BatchNorm2d(6),
    )
    program = rewritten(with_statistics(model), X)
    assert ops(program) == [PLAIN] * 2
    assert len(program.constants) == 2


def test_convolutions_and_norms_in_turn_are_all_folded(tmp_path):
    torch.manual_seed(0)
    model = sequence(
        *(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6), nn.BatchNorm2d(6)),
    )
    program = rewritten(model, X)
    assert ops(program) == [ENDED, PLAIN, NORM]  # of two norms the first
    assert_equal_to_eager(model, tmp_path, X)


def kept_norms() -> dict[str, tuple[nn.Module, Tensor]]:
    conv, norm = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)
    twice = Calls(lambda self, x: (self.m1(y := self.m0(x)), y), conv, norm)
    first = Calls(lambda self, x: self.m0(self.m1(x)), conv, norm)

    def between(self, x):
        return self.m1(self.m0(x).relu())

    def made(self, x):
        return functional.conv2d(x, self.m0.weight * x.mean(), None)

    dynamic = Calls(lambda self, x: self.m1(made(self, x)), conv, norm)
    double = Calls(
        lambda self, x: self.m1(self.m0(x)), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)
    )
    return {
        "read twice": (twice, X),
        "before a convolution": (first, X),
        "after a function": (Calls(between, conv, norm), X),
        "kernels that are computed": (dynamic, X),
        "float64": (double.double(), X.double()),
        "transposed": (sequence(nn.ConvTranspose2d(6, 6, 1), nn.BatchNorm2d(6)), X),
    }


@pytest.mark.parametrize("name", kept_norms())
def test_other_norms_stay(name):
    model, x = kept_norms()[name]
    program = rewritten(with_statistics(model), x)
    assert ops(program).count(NORM) == 1
    assert not any("folded" in each.name for each in program.constants)


def test_a_norm_whose_statistics_a_method_writes_stays(tmp_path):
    def call(self, x):
        y = self.m1(self.m0(x))
        self.m1.running_var.mul_(0.5)
        return y

    model = Calls(call, nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6))
    assert NORM in ops(rewritten(with_statistics(model), X))
    assert_equal_to_eager(model, tmp_path, X)


# Residuals and functions.

FUNCTIONS = {
    "relu": (torch.relu, ("clamp", 0.0, None)),
    "relu6": (functional.relu6, ("clamp", 0.0, 6.0)),
    "hardtanh": (lambda x: functional.hardtanh(x, -0.5, 0.5), ("clamp", -0.5, 0.5)),
    "clamp": (lambda x: x.clamp(max=1), ("clamp", None, 1.0)),
    "crossed": (lambda x: x.clamp(1, -1), ("clamp", 1.0, -1.0)),
    "infinite": (lambda x: x.clamp(min=-torch.inf), ("clamp", -torch.inf, None)),
    "silu": (functional.silu, ("silu", None, None)),
    "gelu": (functional.gelu, ("gelu", None, None)),
    "gelu_tanh": (
        lambda x: functional.gelu(x, approximate="tanh"),
        ("gelu_tanh", None, None),
    ),
    "sigmoid": (torch.sigmoid, ("sigmoid", None, None)),
    "hard_swish": (functional.hardswish, ("hard_swish", None, None)),
    "hard_sigmoid": (functional.hardsigmoid, ("hard_sigmoid", None, None)),
    "written": (lambda x: x * functional.relu6(x + 3) / 6, ("hard_swish", None, None)),
}


@every(3, "name", "residual")
@pytest.mark.parametrize("residual", ["none", "after", "before"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_ends_a_convolution(tmp_path, name, residual):
    function, ending = FUNCTIONS[name]

    def call(self, x):
        y = self.m0(x)
        y = {"none": y, "after": y + x, "before": x + y}[residual]
        return function(y)

    model = Calls(call, nn.Conv2d(6, 6, 3, padding=1))
    program = rewritten(model, X)
    assert ops(program) == [ENDED]
    assert endings(program) == [(residual != "none", *ending)]
    assert_equal_to_eager(model, tmp_path, X)


CONV = nn.Conv2d(6, 6, 3, padding=1, bias=False)
# What is called -> how often the operator after it stays, and the endings.
STAYING = {
    "the result itself is added": (lambda self, x: (y := self.m0(x)) + y, []),
    "a part of the result is added": (
        lambda self, x: (y := self.m0(x)) + y.exp(),
        [],
    ),
    "a tensor of another shape is added": (lambda self, x: self.m0(x) + x[:, :1], []),
    "a multiple is added": (lambda self, x: torch.add(self.m0(x), x, alpha=2), []),
    "the result is returned too": (lambda self, x: ((y := self.m0(x)), y.relu()), []),
    "a NaN is the bound": (lambda self, x: self.m0(x).clamp(min=torch.nan), []),
    "the result is sliced": (lambda self, x: self.m0(x)[:, 1:].relu(), []),
    "bounds are tensors": (lambda self, x: self.m0(x).clamp(x, x + 1), []),
    "a function comes before the residual": (
        lambda self, x: self.m0(x).relu() + x,
        [(False, "clamp", 0.0, None)],
    ),
    "two functions follow": (
        lambda self, x: functional.silu(self.m0(x).relu()),
        [(False, "clamp", 0.0, None)],
    ),
    "a part of a hard swish is returned": (
        lambda self, x: ((g := functional.relu6((y := self.m0(x)) + 3)), y * g / 6),
        [],
    ),
    "two residuals follow": (
        lambda self, x: self.m0(x) + x + x.exp(),
        [(True, "identity", None, None)],
    ),
    "two convolutions are added": (
        lambda self, x: (self.m0(x) + self.m0(x.exp())).relu(),
        [(True, "clamp", 0.0, None)],
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_does_not_fit_stays(tmp_path, name):
    call, found = STAYING[name]
    model = Calls(call, CONV)
    program = rewritten(model, X)
    assert endings(program) == found
    convolutions = 2 if "two convolutions" in name else 1
    assert sum(op in (PLAIN, ENDED) for op in ops(program)) == convolutions
    assert_equal_to_eager(model, tmp_path, X)


class Past(nn.Module):
    """Keeps its last result, before or after a function."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.before = nn.Conv2d(6, 6, 3, padding=1), before
        self.register_buffer("past", torch.ones(1, 6, 5, 10))

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x) + self.past
        done = made.relu()
        self.past.copy_(made if self.before else done)
        return done * 2


@pytest.mark.parametrize("before", [False, True])
def test_a_state_may_be_residual_and_result(tmp_path, before):
    program = rewritten(Past(before), X)
    function = ("identity", None, None) if before else ("clamp", 0.0, None)
    assert endings(program) == [(True, *function)]
    assert_equal_to_eager(Past(before), tmp_path, X)


def test_float64_and_transposed_convolutions_do_not_end_with_functions():
    model = Calls(lambda self, x: self.m0(x).relu(), nn.Conv2d(6, 6, 1).double())
    assert ops(rewritten(model, X.double())) == [PLAIN, "aten::relu"]
    model = Calls(lambda self, x: self.m0(x).relu(), nn.ConvTranspose2d(6, 6, 1))
    assert endings(rewritten(model, X)) == []


def test_a_second_run_changes_nothing():
    torch.manual_seed(0)
    model = sequence(CONV, nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1))
    program = rewritten(model, X)
    again = run_passes(PASSES, program)[0]
    assert program_text(again) == program_text(program)
