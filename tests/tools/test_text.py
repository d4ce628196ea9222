"""Safe names, readable sizes, columns; what repeats is told once."""

import random

import pytest

from kvc.tools.text import (
    columns,
    escape,
    families,
    folded,
    in_runs,
    plural,
    share,
    size,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("größe 重み", "größe 重み"),
        ("\x1b[31mred\n", "\\x1b[31mred\\x0a"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_what_a_terminal_obeys_or_hides_is_escaped(text, shown):
    assert escape(text) == shown


def test_a_message_may_keep_its_lines():
    assert escape("a\nb\t", keep="\n") == "a\nb\\x09"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (4_194_304, "4.19 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_have_three_digits(nbytes, text):
    assert size(nbytes) == text


def test_counts_agree_with_their_nouns():
    assert plural(1, "blob") == "1 blob"
    assert plural(1200, "blob") == "1,200 blobs"
    assert plural(2, "copy") == "2 copies"


def test_shares():
    assert share(1, 3) == "33.3%"
    assert share(0, 0) == "0.0%"


def test_columns_line_up_without_trailing_spaces():
    rows = [("a", "1", "x"), ("bbb", "22", "")]
    assert columns(rows, "<>") == ["  a     1  x", "  bbb  22"]
    assert columns([]) == []


def patterns(*names):
    return [p for p, _ in families(names, name=lambda n: n, like=lambda n: 0)]


def test_names_that_differ_in_a_number_are_one_line():
    assert patterns("l.0.k", "l.0.v", "l.1.k", "l.1.v") == ["l.{0..1}.k", "l.{0..1}.v"]


def test_numbers_that_do_not_vary_stay():
    assert patterns("a.0.b.3", "a.1.b.3") == ["a.{0..1}.b.3"]
    assert patterns("a.5.b", "c") == ["a.5.b", "c"]


def test_gaps_show():
    assert patterns("l.0", "l.2") == ["l.{0,2}"]
    assert patterns("l.0", "l.2", "l.4", "l.6") == ["l.{0,2,4,..6}"]


def test_digits_inside_a_word_are_no_number():
    assert patterns("conv1d.w", "conv2d.w") == ["conv1d.w", "conv2d.w"]


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
