"""What is kept of results: sums that differ as much as the results do."""

import numpy as np
import pytest

from kvc.tools.checks.calls import Result
from kvc.tools.checks.readings import SUMS, differences, read


def rows(*arrays):
    (reading,) = read(Result("a", array) for array in arrays)
    return reading.rows


def test_sums_differ_as_much_as_results_do():
    random = np.random.default_rng(1)
    before = random.standard_normal((40, 100_000)).astype(np.float32)
    here = before + random.standard_normal(before.shape) * 0.01
    (shares,) = np.split(differences(rows(*before), rows(*here)), 1)
    assert np.sqrt(np.mean(shares**2)) == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("at", [0, 65_535, 65_536, 99_999])
def test_each_number_counts(at):
    before = np.ones(100_000, np.float32)
    here = before.copy()
    here[at] = 1000
    (share,) = differences(rows(before), rows(here))
    assert share > 1


def test_a_result_that_is_small_beside_others_is_measured_by_these():
    before = rows(np.ones(50), np.full(50, 1e-6))
    here = rows(np.ones(50), np.zeros(50))
    assert differences(before, here).max() < 1e-5
    assert differences(before[1:], here[1:]).max() == 1


def test_which_numbers_are_not_finite_is_kept():
    numbers = np.ones(5, np.float32)
    others = [numbers.copy() for _ in range(4)]
    others[0][2] = np.nan
    others[1][2] = np.inf
    others[2][2] = -np.inf
    others[3][3] = np.nan
    (plain,) = read([Result("a", numbers)])
    kinds = [read([Result("a", one)])[0].kind for one in others]
    assert plain.kind == "float32[5]"
    assert all(kind.startswith("float32[5] with 1 not finite (") for kind in kinds)
    assert len(set(kinds)) == 4
    assert np.isfinite(rows(*others)).all()


def test_results_of_one_name_are_kept_together():
    given = [Result("a", np.ones(3)), Result("b", "Poisoned"), Result("a", np.ones(4))]
    first, second = read(given)
    assert (first.name, first.kind) == ("a", "float64[3]; float64[4]")
    assert first.rows.shape == (2, SUMS)
    assert (second.kind, second.rows.tolist()) == ("Poisoned", [[0.0] * SUMS])


def test_nothing_at_all_has_sums():
    assert rows(np.zeros((0, 4), np.int64)).tolist() == [[0.0] * SUMS]
    assert differences(rows(np.zeros(3)), rows(np.zeros(3))).tolist() == [0.0]
