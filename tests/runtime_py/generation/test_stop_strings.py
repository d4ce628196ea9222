"""Stop strings: the same cut, however the text comes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime.generation.answer import StopStrings


def show(strings, pieces):
    stops = StopStrings(strings)
    shown = [stops.push(piece) for piece in pieces]
    return [*shown, stops.finish()], stops.found


def cut(text, strings):
    """The text before the stop string that ends first, the longest of several."""
    ends = [
        (match.start() + len(string), match.start())
        for string in strings
        for match in re.finditer(f"(?={re.escape(string)})", text)
    ]
    return text[: min(ends)[1]] if ends else text


TEXTS = st.text(alphabet="abé", max_size=12)


@given(
    pieces=st.lists(TEXTS, max_size=6),
    strings=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=3),
)
def test_what_is_shown_is_the_text_up_to_the_first_stop_string(pieces, strings):
    shown, found = show(strings, pieces)
    text = "".join(pieces)
    assert "".join(shown) == cut(text, strings)
    assert found == any(string in text for string in strings)


@given(
    text=st.text(alphabet="ab", max_size=14),
    strings=st.lists(
        st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3
    ),
)
def test_nothing_is_held_back_that_no_stop_string_can_begin_in(text, strings):
    stops = StopStrings(strings)
    shown = ""
    for end, char in enumerate(text, start=1):
        shown += stops.push(char)
        if stops.found:
            return
        held = text[len(shown) : end]
        begins = [s for s in strings if s.startswith(held) and len(s) > len(held)]
        assert begins or not held


def test_a_stop_string_over_several_pieces_is_cut_and_a_false_start_is_shown():
    assert show(["\n\nQ:"], ["a", "\n", "\nb\n", "\nQ", ": x"]) == (
        ["a", "", "\n\nb", "", "", ""],
        True,
    )


def test_what_was_held_back_is_shown_at_the_end():
    assert show(["<end>"], ["x<e", "n"]) == (["x", "", "<en"], False)


def test_without_stop_strings_all_is_shown_at_once():
    assert show([], ["a", "b"]) == (["a", "b", ""], False)


def test_of_two_that_end_together_the_longer_is_cut():
    assert show(["b", "ab"], ["xab"])[0][0] == "x"
    assert show(["c", "abcd"], ["xabcd"])[0][0] == "xab"
