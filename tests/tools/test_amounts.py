"""Bytes and sizes as the command line takes them."""

import click
import pytest

from kvc.tools.amounts import nbytes_of, sizes_of, whole_number


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("512M", 512 * 10**6), ("1.5G", 1_500_000_000), ("100k", 100_000)],
)
def test_bytes_have_decimal_units(text, nbytes):
    assert nbytes_of(text, "--max-ram") == nbytes


@pytest.mark.parametrize("text", ["", "M", "-1", "-5M", "5Q", "nan", "inf", "1e999"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected bytes"):
        nbytes_of(text, "--max-ram")


def test_what_must_be_a_byte_at_least_is_not_none():
    assert nbytes_of("1", "--fit", least=1) == 1
    with pytest.raises(click.BadParameter, match="expected bytes"):
        nbytes_of("0", "--fit", least=1)


def test_sizes_have_names():
    assert sizes_of("capacity=4096, tokens=5") == {"capacity": 4096, "tokens": 5}
    assert sizes_of(None) == {}


@pytest.mark.parametrize(
    "text", ["capacity", "capacity=", "n=-1", "n=1.5", "n=1,n=2", "n=" + "9" * 5000]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(click.BadParameter, match="each name once"):
        sizes_of(text)


def test_a_number_has_no_more_digits_than_any_size():
    assert whole_number("9" * 18) == 10**18 - 1
    assert whole_number("9" * 5000) is None
