"""Texts that count values up are short, all others stand as they are."""

import pytest

from kvc.tools.reports.runs import in_runs


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([], ""),
        (["%1", "%2", "%3"], "%1, %2, %3"),
        (["%1", "%2", "%3", "%4"], "%1..%4"),
        (["%1", "%3", "%4", "%5", "%6", "None"], "%1, %3..%6, None"),
        ([f"f32[4] in %{i}" for i in range(2, 9)], "f32[4] in %2..%8"),
        ([f"%{i} SLOTS axis 2: 1" for i in range(9)], "%0..%8 SLOTS axis 2: 1"),
        (["f32[4] at 0", "f32[4] at 64", "f32[4] at 128"] * 2, None),
        (["1", "2", "3", "4", "5"], None),
        (["%1", "%1", "%1", "%1"], None),
        (
            ["a in %2", "b in %3", "a in %4", "b in %5", "a in %6", "c"],
            "a in %2, b in %3, ... %5, a in %6, c",
        ),
        (["a in %2", "b in %3", "a in %4"], None),
        (["%99999999999999999999", "%1"], None),
    ],
)
def test_of_many_in_a_row_the_ends_are_shown(texts, shown):
    assert in_runs(texts) == (", ".join(texts) if shown is None else shown)
