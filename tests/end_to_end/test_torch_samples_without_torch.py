"""A fixed sample of torch's operators and modules, run where torch cannot be imported.

The benchmarks run all of them: `operators.py` and `modules.py`, with `--recipe cpu_fp32
--without-torch`.
"""

import pytest

pytest.importorskip("expecttest", reason="torch's samples of operators need expecttest")

import torch
from module_outcomes import Applied, Outcome, outcome
from operator_samples import operators, trials_of
from operator_samples import outcome as operator_outcome
from torch import nn
from torch_modules import CASES
from without_torch import FailedThereError, WithoutTorch

from kvc.compiler import Method, compile_program

# Some kernels of each family, and operands of several dtypes.
OPERATORS = (
    "cumprod", "heaviside", "ldexp", "linalg.solve", "logsumexp", "masked.var",
    "nn.functional.conv_transpose2d", "nn.functional.embedding_bag",
    "nn.functional.interpolate", "nn.functional.scaled_dot_product_attention",
    "put", "scatter_reduce",
)  # fmt: skip
MODULES = (nn.GRUCell, nn.MultiLabelMarginLoss, nn.PixelShuffle)
DTYPES = (torch.float64, torch.int64, torch.bool)


@pytest.fixture(scope="module")
def process():
    with WithoutTorch() as process:
        yield process


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_torch_equals_eager_without_torch(name, process, tmp_path):
    op = next(op for op in operators() if op.name == name)

    found = [
        operator_outcome(trial, tmp_path / "sample.kvc", "cpu_fp32", process)
        for trial in trials_of(op, "plain", 1, DTYPES)
    ]

    assert Outcome("equal") in found
    assert [each for each in found if each.kind not in ("", "equal")] == []


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.cls in MODULES], ids=str
)
def test_a_module_of_torch_equals_eager_without_torch(case, process, tmp_path):
    module, inputs = case.make()

    found = outcome(module, inputs, {}, tmp_path / "module.kvc", "cpu_fp32", process)

    assert found == Outcome("equal")


def test_what_is_left_to_torch_is_named_and_cannot_run_without_it(process, tmp_path):
    path, x = tmp_path / "model.kvc", torch.eye(3)
    model = Applied(torch.linalg.svdvals)

    found = outcome(model, (x,), {}, path, "cpu_fp32", process)

    assert found.kind == "left"
    assert found.reason.startswith("aten::_linalg_svd: it has no kernel of")
    with pytest.raises(FailedThereError, match="needs the package torch"):
        process.run(path, [((x.numpy(),), {})])


def test_the_process_runs_other_bundles_after_one_has_failed(process, tmp_path):
    path = tmp_path / "model.kvc"
    model, x = Applied(torch.exp), torch.zeros(2)
    compile_program(model, [Method("forward", (x,))], "cpu_fp32").save(path)

    with pytest.raises(FailedThereError, match="CallMismatch"):
        process.run(path, [((), {})])

    (found,) = process.run(path, [((x.numpy(),), {})])
    assert found.tolist() == [1, 1]
