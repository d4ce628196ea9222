"""What the library's decoders cannot be asked: it panics, or never holds back."""

import pytest

from kvc.runtime.tokenizers.text_streaming import StripEnds


@pytest.mark.parametrize(
    ("start", "stop", "pieces", "expected"),
    [
        (1, 0, ["aab"], ["ab", ""]),
        (2, 0, ["a", "a", "ab"], ["", "", "ab", ""]),
        (2, 0, ["ab", "a"], ["b", "a", ""]),
        (0, 1, ["ba", "a"], ["b", "a", ""]),
        (0, 2, ["ba", "a", "a", "c", "a"], ["b", "", "a", "aac", "", ""]),
        (0, 2, ["", "b", ""], ["", "b", "", ""]),
        (1, 1, ["a"], ["", ""]),
        (1, 1, ["a", "a", "a"], ["", "", "a", ""]),
    ],
)
def test_both_ends_of_a_text_in_pieces_are_stripped(start, stop, pieces, expected):
    stage = StripEnds("a", start, stop)
    made = ["".join(stage.push(piece)) for piece in pieces]
    assert [*made, "".join(stage.finish())] == expected
