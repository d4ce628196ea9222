"""Convolutions of single elements that become one operator with the depthwise after."""

from dataclasses import dataclass

import pytest
import torch
from convolution_models import Calls, assert_equal_to_eager, ops
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.ingest import import_program
from kvc.compiler.ir import Node, Program
from kvc.compiler.ir.text import program_text
from kvc.compiler.passes import run_passes
from kvc.compiler.passes.convolution_pairs import PairConvolutions
from kvc.compiler.passes.convolutions import EndConvolutions, FoldBatchNorms
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.compiler.trace import capture

PASSES = (
    DropDeadCode(),
    FoldBatchNorms(),
    EndConvolutions(),
    DropDeadCode(),
    PairConvolutions(),
    DropDeadCode(),
)
PLAIN, ENDED, PAIR = "aten::convolution", "kvc::convolution", "kvc::pointwise_depthwise"
# 32 channels of 64 x 64 float32 elements are 512 KiB.
X = torch.linspace(-9, 9, 4 * 64 * 64).sin().reshape(1, 4, 64, 64)


def rewritten(
    model: nn.Module, x: Tensor, dynamic: dict[str, dict[int, Dim]] | None = None
) -> Program:
    """Return the program of a model after the passes."""
    method = Method("forward", (x,), dynamic=dynamic or {})
    captured = capture(model.eval(), method)
    return run_passes(PASSES, import_program(model, (captured,)))[0]


def pair_of(program: Program) -> Node:
    (method,) = program.methods
    (pair,) = (node for node in method.nodes if node.op == PAIR)
    return pair


def single(channels: int = 32, inputs: int = 4, **options: object) -> nn.Conv2d:
    """Return a convolution of single elements, unless `options` say otherwise."""
    return nn.Conv2d(inputs, channels, **{"kernel_size": 1} | options)


def planes(channels: int = 32, **options: object) -> nn.Conv2d:
    """Return a depthwise convolution, unless `options` say otherwise."""
    given = {"kernel_size": 3, "padding": 1, "groups": channels}
    return nn.Conv2d(channels, channels, **given | options)


def chain(*modules: nn.Module) -> Calls:
    """Return a model that calls its modules in turn."""

    def call(self: Calls, x: Tensor) -> Tensor:
        for name in self._modules:
            x = self.get_submodule(name)(x)
        return x

    return Calls(call, *modules)


@dataclass
class Model:
    """A model that has a pair, and an input that makes the pair large enough."""

    module: nn.Module
    x: Tensor = X


def joined() -> dict[str, Model]:
    one, three = torch.randn(2, 4, 4096), torch.randn(1, 4, 8, 16, 32)
    norms = nn.BatchNorm2d(32), nn.BatchNorm2d(32)
    return {
        "512 KiB": Model(chain(single(), planes())),
        "functions": Model(
            chain(single(), nn.ReLU6(), planes(stride=2), nn.Hardswish())
        ),
        "one function": Model(chain(single(), planes(), nn.SiLU())),
        "the other": Model(chain(single(), nn.GELU(), planes())),
        "no biases": Model(chain(single(bias=False), nn.ReLU(), planes(bias=False))),
        "norms": Model(chain(single(), norms[0], nn.ReLU(), planes(), norms[1])),
        "a larger kernel": Model(chain(single(), planes(kernel_size=5, dilation=2))),
        "single planes": Model(chain(single(), planes(kernel_size=1, padding=0))),
        "a batch": Model(chain(single(), planes()), torch.cat((X, -X))),
        "odd sizes": Model(chain(single(50), planes(50)), X[..., :57, :47]),
        "strange operands": Model(chain(single(), planes()), X.transpose(2, 3)),
        "a residual before and after": Model(
            Calls(
                lambda self, x: self.m2(self.m1(self.m0(x + 1))) + x,
                *(single(), planes(), single(4, 32)),
            )
        ),
        "one axis": Model(
            chain(nn.Conv1d(4, 32, 1), nn.ReLU(), nn.Conv1d(32, 32, 3, groups=32)), one
        ),
        "three axes": Model(
            chain(nn.Conv3d(4, 32, 1), nn.SiLU(), nn.Conv3d(32, 32, 3, groups=32)),
            three,
        ),
    }


@pytest.mark.parametrize("name", joined())
def test_a_pair_becomes_one_operator(tmp_path, name):
    torch.manual_seed(0)
    model = joined()[name]
    found = ops(rewritten(model.module, model.x))
    assert found.count(PAIR) == 1
    assert not {PLAIN, ENDED} & {*found} or "residual" in name
    assert_equal_to_eager(model.module, tmp_path, model.x)


def test_both_functions_are_kept():
    model = chain(single(), nn.ReLU6(), planes(stride=2), nn.Hardswish())
    given = pair_of(rewritten(model, X)).arguments
    assert given[3:6] == ("clamp", 0.0, 6.0)
    assert given[8:] == ((2, 2), (1, 1), (1, 1), "hard_swish", None, None)


def test_what_reads_a_pair_may_be_a_pair(tmp_path):
    model = chain(single(), planes(), single(32, 32), nn.ReLU(), planes())
    program = rewritten(model, X)
    assert ops(program) == [PAIR, PAIR]
    assert_equal_to_eager(model, tmp_path, X)


def test_of_three_that_fit_each_is_computed_once(tmp_path):
    """A convolution of one channel's single elements is a depthwise one too."""
    x = torch.randn(1, 1, 512, 512)
    model = chain(single(1, 1), single(1, 1), planes(1))
    found = ops(rewritten(model, x))
    assert sorted(found) == [PLAIN, PAIR]
    assert_equal_to_eager(model, tmp_path, x)


def staying() -> dict[str, Model]:
    pair, half = (single(), planes()), X[..., :63]

    def both(self: Calls, x: Tensor) -> Tensor:
        y = self.m0(x)
        return self.m1(y) + y

    def ended(self: Calls, x: Tensor) -> Tensor:
        y = functional.relu(self.m0(x))
        return self.m1(y) * y

    def shown(self: Calls, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.m0(x)
        return y, self.m1(y)

    def twice(self: Calls, x: Tensor) -> Tensor:
        y = self.m0(x)
        return self.m1(y) * self.m2(y)

    def added(self: Calls, x: Tensor) -> Tensor:
        return self.m1((self.m0(x) + x[:, :1].expand(-1, 32, -1, -1)).relu())

    def residual(self: Calls, x: Tensor) -> Tensor:
        return (self.m1(self.m0(x)) + x[:, :1].expand(-1, 32, -1, -1)).relu()

    return {
        "less than 512 KiB": Model(chain(*pair), half),
        "a batch of less": Model(chain(*pair), torch.cat((half, half))),
        "read twice": Model(Calls(both, *pair)),
        "read twice after a function": Model(Calls(ended, *pair)),
        "read by two convolutions": Model(Calls(twice, *pair, planes())),
        "returned": Model(Calls(shown, *pair)),
        "a residual of the first": Model(Calls(added, *pair)),
        "a residual of the second": Model(Calls(residual, *pair)),
        "groups in the first": Model(chain(single(groups=2), planes())),
        "groups in the second": Model(chain(single(), planes(groups=16))),
        "one group in the second": Model(chain(single(), planes(groups=1))),
        "more channels after": Model(
            chain(single(), nn.Conv2d(32, 64, 3, padding=1, groups=32))
        ),
        "a larger first kernel": Model(
            chain(single(kernel_size=3, padding=1), planes())
        ),
        "a kernel larger along one axis": Model(
            chain(single(kernel_size=(1, 3), padding=(0, 1)), planes())
        ),
        "strides of the first": Model(
            chain(single(stride=2), planes()), torch.randn(1, 4, 128, 128)
        ),
        "padding of the first": Model(chain(single(padding=1), planes())),
        "float64": Model(chain(single(), planes()).double(), X.double()),
        "a function that ends no convolution": Model(
            chain(single(), nn.Tanh(), planes())
        ),
        "the other order": Model(chain(planes(4), single())),
        "transposed": Model(
            chain(single(), nn.ConvTranspose2d(32, 32, 3, padding=1, groups=32))
        ),
    }


@pytest.mark.parametrize("name", staying())
def test_what_does_not_fit_stays(tmp_path, name):
    torch.manual_seed(0)
    model = staying()[name]
    assert PAIR not in ops(rewritten(model.module, model.x))
    assert_equal_to_eager(model.module, tmp_path, model.x)


def test_pairs_of_dynamic_sizes_stay():
    model = chain(single(), planes())
    wide = {"x": {3: Dim("width", 64, 512)}}
    assert PAIR not in ops(rewritten(model, X, wide))


class Past(nn.Module):
    """Convolves what it was called with before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.single, self.planes = single(), planes()
        self.register_buffer("past", torch.ones(1, 4, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        between = self.single(self.past)
        self.past.copy_(x)
        return self.planes(between).relu()


def test_a_state_is_read_before_it_is_written(tmp_path):
    assert_equal_to_eager(Past(), tmp_path, X)


def test_a_pair_needs_no_memory_between(monkeypatch):
    """The result of the single elements is never whole in memory."""
    modules = single(), nn.ReLU6(), planes(stride=2), nn.ReLU6(), single(4, 32)
    model, method = chain(*modules).eval(), Method("forward", (X,))
    small = workspace_nbytes(model, method)
    monkeypatch.setattr(PairConvolutions, "run", lambda self, program: program)
    assert small < 1 << 19 < workspace_nbytes(model, method)


def workspace_nbytes(model: nn.Module, method: Method) -> int:
    """Return the scratch memory that is planned for a compiled model."""
    program = compile_program(model, [method], "cpu_fp32").program
    inside = sum(each.workspace_nbytes for each in program.delegates)
    return inside + sum(each.graph.scratch_nbytes for each in program.methods)


def test_a_second_run_changes_nothing():
    program = rewritten(chain(single(), nn.ReLU(), planes()), X)
    again = run_passes(PASSES, program)[0]
    assert program_text(again) == program_text(program)
