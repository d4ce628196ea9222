"""Safe names, readable sizes, columns; names in families."""

import pytest

from kvc.schema.text import columns, escape, families, plural, share, size


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
