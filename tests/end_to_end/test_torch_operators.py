"""A fixed sample of torch's own operator samples; the benchmark runs all of them."""

from itertools import islice

import pytest

pytest.importorskip("expecttest", reason="torch's samples of operators need expecttest")

from module_outcomes import Outcome
from operator_samples import WAYS, operators, outcome, trials_of

# Of each kind of kernel one; all ways of each are equal, or eager has none.
SAMPLE = (
    "cumsum", "index_add", "masked_fill", "nn.functional.conv1d",
    "nn.functional.silu", "sort", "var_mean",
)  # fmt: skip
REFUSED = {
    "nonzero": "aten::nonzero",
    "mode": "aten::mode",
    "bernoulli": "random numbers",
}


def _operator(name):
    return next(op for op in operators() if op.name == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_an_operator_of_torch_equals_eager_in_all_ways(name, tmp_path):
    op = _operator(name)
    trials = [(way, each) for way in WAYS for each in islice(trials_of(op, way, 1), 1)]

    found = {(way, outcome(each, tmp_path / "sample.kvc")) for way, each in trials}

    assert ("plain", Outcome("equal")) in found
    assert [one for one in found if one[1].kind not in ("", "equal")] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_cannot_run_is_refused_with_its_reason(name, tmp_path):
    (trial, *_) = trials_of(_operator(name), "plain", 1)

    found = outcome(trial, tmp_path / "sample.kvc")

    assert found.kind == "refused"
    assert REFUSED[name] in found.reason
