"""A fixed sample of torch.nn's modules against eager; the benchmark runs all cases."""

import pytest
from module_outcomes import outcome
from torch import nn
from torch_modules import CASES, NOT_RUN, module_classes

SAMPLE = (
    nn.Softshrink, nn.RReLU, nn.AdaptiveAvgPool2d, nn.Bilinear, nn.EmbeddingBag,
    nn.MultiLabelMarginLoss, nn.PixelShuffle, nn.GroupNorm, nn.GRUCell, nn.LPPool2d,
)  # fmt: skip
# Their operators are pools, resizing and norms of channels.
SPATIAL = (
    nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool3d, nn.AvgPool1d, nn.AvgPool3d, nn.GroupNorm, nn.InstanceNorm2d,
    nn.MaxPool2d, nn.MaxPool3d, nn.Upsample, nn.UpsamplingBilinear2d,
    nn.UpsamplingNearest2d,
)  # fmt: skip
REFUSED = {
    nn.FractionalMaxPool2d: "random numbers",
    nn.DataParallel: "it takes *args",
}


def _cases(classes):
    return [case for case in CASES if case.cls in classes]


def test_each_module_class_of_torch_has_two_configurations():
    counts = dict.fromkeys(module_classes() - NOT_RUN, 0)
    for case in CASES:
        counts[case.cls] += 1

    assert [cls.__name__ for cls, count in counts.items() if count < 2] == []


@pytest.mark.parametrize("case", _cases(SAMPLE), ids=str)
def test_a_module_of_torch_equals_eager(case, tmp_path):
    module, inputs = case.make()

    assert outcome(module, inputs, {}, tmp_path / "module.kvc").kind == "equal"


@pytest.mark.parametrize("case", _cases(SPATIAL), ids=str)
def test_a_module_over_planes_needs_no_pytorch_at_run_time(case, tmp_path):
    module, inputs = case.make()

    found = outcome(module, inputs, {}, tmp_path / "module.kvc", "cpu_fp32")

    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("case", _cases(REFUSED), ids=str)
def test_what_cannot_be_run_is_refused_with_its_reason(case, tmp_path):
    module, inputs = case.make()

    found = outcome(module, inputs, {}, tmp_path / "module.kvc")

    assert found.kind == "refused"
    assert REFUSED[case.cls] in found.reason
    assert not (tmp_path / "module.kvc").exists()
