"""What messages have in common."""

import pickle

import pytest

from kvc.schema.errors import UnknownName, UnknownRecipe, meant, shortened


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prefil", " (did you mean 'prefill'?)"),
        ("DECODE", " (did you mean 'decode'?)"),
        ("layers.0.kproj.weight", " (did you mean 'layers.0.k_proj.weight'?)"),
        ("something else", ""),
        (7, ""),
    ],
)
def test_the_known_name_most_like_a_wrong_one_is_offered(name, expected):
    assert meant(name, ("prefill", "decode", "layers.0.k_proj.weight")) == expected


def test_nothing_is_offered_where_nothing_is_known():
    assert meant("prefill", ()) == ""


def test_of_many_names_only_the_first_are_listed():
    names = tuple(f"n{i}" for i in range(14))
    assert shortened(names[:12]).endswith(", n10, n11")
    assert shortened(names).endswith(", n11 and 2 more")
    assert shortened(()) == "none"


@pytest.mark.parametrize(
    "error",
    [
        UnknownName(kind="method", name="prefil", known=("prefill", "decode")),
        UnknownRecipe(recipe="f32", known=("fp32", "bf16")),
    ],
)
def test_what_is_known_stays_on_the_error(error):
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.known == error.known
    assert "did you mean" in str(error)
