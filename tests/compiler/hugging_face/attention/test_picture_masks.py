"""What queries see in a text with a picture is asked of the mask function."""

import pytest
import torch

from kvc.compiler.hugging_face.attention.attention_masks import Sight
from kvc.compiler.hugging_face.attention.picture_masks import find_around_picture
from kvc.schema.errors import UnsupportedModel

PICTURE, COUNT = range(3, 9), 20


def is_of_picture(places):
    """As a table of the text's own length, which cannot be asked beyond it."""
    table = torch.zeros(COUNT, dtype=torch.bool)
    table[PICTURE.start : PICTURE.stop] = True
    return table[places]


def causal(batch, head, query, key):
    return key <= query


def joined(batch, head, query, key):
    return (key <= query) | (is_of_picture(query) & is_of_picture(key))


def within(window, other):
    """Return a mask of what another one lets see, as far as a window reaches back."""

    def mask(batch, head, query, key):
        return (key > query - window) & other(batch, head, query, key)

    return mask


@pytest.mark.parametrize(
    ("mask", "sight"),
    [
        (causal, Sight(None)),
        (joined, Sight(None, joined=True)),
        (within(4, causal), Sight(4)),
        (within(4, joined), Sight(4, joined=True)),
        (within(7, joined), Sight(7, joined=True)),
    ],
)
def test_windows_and_joined_places_are_found(mask, sight):
    assert find_around_picture(mask, PICTURE, COUNT, "it") == sight


def sees_all(batch, head, query, key):
    return key >= 0


def sees_the_picture_from_before(batch, head, query, key):
    return (key <= query) | is_of_picture(key)


def sees_half_of_the_picture(batch, head, query, key):
    return (key <= query) | (is_of_picture(query) & is_of_picture(key) & (key < 6))


def is_joined_with_what_follows(batch, head, query, key):
    return (key <= query) | (is_of_picture(query) & (key <= PICTURE.stop))


def sees_nothing(batch, head, query, key):
    return key < 0


@pytest.mark.parametrize(
    "mask",
    [
        sees_all,
        sees_the_picture_from_before,
        sees_half_of_the_picture,
        is_joined_with_what_follows,
        sees_nothing,
        within(4, sees_the_picture_from_before),
    ],
)
def test_other_masks_are_refused(mask):
    with pytest.raises(UnsupportedModel, match="its attention mask is neither"):
        find_around_picture(mask, PICTURE, COUNT, "it")
