"""Text as it is made: characters whole, stop strings cut."""

from itertools import pairwise

import pytest
from counting_model import VOCAB, counting_program
from hand_built import write_bundle
from hypothesis import given
from hypothesis import strategies as st
from spelling_tokenizers import PieceTokenizer

from kvc.runtime import generate, load
from kvc.runtime.generation.answer import Spelling

# Token n stands for the n-th; é and € come in parts.
PIECES = [b"", b"a", b"b\xc3", b"\xa9", b"\xe2\x82", b"\xac<", b"end", b">c", b"d"]
PIECES += [b"?"] * (VOCAB - len(PIECES))


@pytest.fixture
def session(tmp_path):
    with load(write_bundle(tmp_path / "g.kvc", counting_program())) as opened:
        yield opened.session()


@pytest.fixture
def tokenizer():
    return PieceTokenizer(PIECES)


def test_a_character_waits_until_it_is_whole(session, tokenizer):
    run = generate(session, [0], max_tokens=5, tokenizer=tokenizer)
    assert list(run.text()) == ["a", "b", "é", "€<"]
    assert run.tokens == [1, 2, 3, 4, 5]


def test_a_character_that_never_becomes_whole_is_replaced(session, tokenizer):
    run = generate(session, [0], max_tokens=4, tokenizer=tokenizer)
    assert list(run.text()) == ["a", "b", "é", "\ufffd"]


def test_a_stop_string_over_several_tokens_is_cut(session, tokenizer):
    stop = {"stop_strings": ["<end>"], "tokenizer": tokenizer}
    run = generate(session, [0], **stop)
    assert list(run.text()) == ["a", "b", "é", "€"]
    assert run.reason == "stop_string"
    assert run.tokens == [1, 2, 3, 4, 5, 6, 7]
    assert run.pending == (7,)


def test_a_stop_string_ends_the_tokens_too(session, tokenizer):
    run = generate(session, [0], stop_strings="b", tokenizer=tokenizer)
    assert list(run) == [1, 2]
    assert run.reason == "stop_string"
    assert "".join(run.text()) == "a"
    assert list(run.text()) == []


def test_what_was_held_back_comes_at_the_end(session, tokenizer):
    stop = {"stop_strings": "<ending", "tokenizer": tokenizer}
    assert list(generate(session, [5], max_tokens=1, **stop).text()) == ["end"]
    session.reset()
    run = generate(session, [4], max_tokens=2, **stop)
    assert list(run.text()) == ["€", "<end"]
    assert run.reason == "max_tokens"


class Dotted(PieceTokenizer):
    """Ends each text with a dot, as often as it is asked to."""

    def stream(self, after=()):
        made = super().stream(after)
        made.finish = lambda: "."
        return made


def test_the_end_of_the_text_comes_once(session):
    run = generate(session, [0], max_tokens=1, tokenizer=Dotted(PIECES))
    assert list(run.text()) == ["a", "."]
    assert list(run.text()) == []


def test_text_that_is_asked_for_late_begins_at_the_beginning(session, tokenizer):
    run = generate(session, [0], max_tokens=4, tokenizer=tokenizer)
    assert [next(run), next(run)] == [1, 2]
    text = run.text()
    assert next(text) == "ab"
    assert run.tokens == [1, 2]
    assert next(text) == "é"


def test_tokens_alone_need_no_tokenizer(session, tokenizer):
    assert len(list(generate(session, [0], max_tokens=4, tokenizer=tokenizer))) == 4
    assert tokenizer.streams == 0


def test_special_tokens_belong_to_the_first_text_alone(session, tokenizer):
    first = generate(session, "ad", max_tokens=1, tokenizer=tokenizer)
    assert first.pending == (0, 1, 8)
    list(first)
    second = generate(session, "ad", max_tokens=1, tokenizer=tokenizer)
    assert second.pending == (1, 8)


@given(
    text=st.text(alphabet="aé€🙂<", max_size=10),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    strings=st.lists(st.text(alphabet="aé€<", min_size=1, max_size=3), max_size=2),
)
def test_the_text_does_not_depend_on_how_tokens_cut_it(text, cuts, strings):
    whole = text.encode()
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    spelling = Spelling(PieceTokenizer(pieces), [], strings)
    shown = []
    for count in range(len(pieces) + 1):
        spelling.spell(range(count))
        shown.append(spelling.take())
    shown.append(spelling.finish())
    starts = {s: text.find(s) for s in strings if s in text}
    ends = [(start + len(s), start) for s, start in starts.items()]
    assert "".join(shown) == (text[: min(ends)[1]] if ends else text)
    assert spelling.stopped == bool(ends)
