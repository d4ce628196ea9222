"""What Python and torch refuse is told as what a model's code did."""

import pytest
import torch

from kvc.compiler.hugging_face.model_words import words_of


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (lambda: [][3], "it asks for an element that is not there"),
        (lambda: torch.zeros(2)[2], "it asks for element 2 of 2 along dimension 0"),
        (lambda: {}["a"], "it asks for 'a', which is not there"),
        (lambda: None.shape, "it asks for shape of None, so something that it needs"),
        (lambda: [].shape, "it asks for shape, which no list has"),
        (lambda: 1 + None, "it computes with None, so something that it needs"),
        (lambda: 1 + "a", "TypeError: unsupported operand"),
        (lambda: int("x"), "ValueError: invalid literal"),
    ],
)
def test_what_code_did_is_told(failing, said):
    with pytest.raises(Exception) as caught:  # noqa: PT011  of any kind
        failing()
    assert words_of(caught.value).startswith(said)


def test_what_raises_without_a_name_says_so_itself():
    assert words_of(AttributeError("no cache")) == "AttributeError: no cache"
    assert words_of(KeyError()) == "KeyError"
