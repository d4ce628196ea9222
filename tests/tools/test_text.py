"""Lines that repeat are printed once."""

import random

import pytest

from kvc.tools.text import folded, in_runs


def layer(number, first):
    product = f"aten::linear(%{first - 1}, %9): float32[4] at {64 * first}"
    return [
        f"  %{first} = {product}  # m:1 (layers.{number}.up)",
        f"  %{first + 1} = aten::relu(%{first}): float32[4] at {64 * first + 8}  # m:2",
    ]


def test_layers_are_told_once():
    layers = [line for i in range(30) for line in layer(i, 10 + 2 * i)]
    lines = ["  %1 = input x: float32[4]", *layers, "  %90 = aten::neg(%89)"]
    assert list(folded(lines, "  ")) == [
        lines[0],
        *layers[:2],
        "  ... the 2 lines above 29 more times, for layers.{1..29}",
        lines[-1],
    ]


def test_lines_without_names_and_few_of_them():
    same = [f"  %{i} = input: int64[1]" for i in range(9)]
    assert list(folded(same, "")) == [same[0], "... the line above 8 more times"]
    assert list(folded(same[:4], "")) == same[:4]


def test_other_shapes_operators_and_attributes_are_not_alike():
    lines = [f"  %{i} = aten::view(%1, [{i}]): float32[{i}]" for i in range(40)]
    assert list(folded(lines, "")) == lines


def test_nothing_is_lost():
    """What is left out and what stands there are together all lines."""
    chance = random.Random(5)
    for _ in range(300):
        lines = [chance.choice("abc") for _ in range(chance.randrange(60))]
        count = 0
        for line in folded(lines, "!"):
            if line.startswith("!"):
                words = line.split()
                length = 1 if words[2] == "line" else int(words[2])
                count += length * int(words[-3])
            else:
                count += 1
        assert count == len(lines)


def test_tens_of_thousands_of_different_lines_all_stand_there():
    lines = [f"{'x' * (index % 7)}{index}y" for index in range(60_000)]
    assert list(folded(lines, "")) == lines


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
