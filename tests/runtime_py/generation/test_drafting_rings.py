"""Drafts over caches that are rings, which forget no more than their slack."""

from dataclasses import replace

import pytest
from daily import only
from interrupted_calls import interrupted
from ring_models import RingDecoder, Shape, ring_methods

from kvc.compiler import compile_program
from kvc.runtime import BadSetting, generate, load

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def write(path, slots, linear_draft=False):
    """Write a decoder of windows of 5; a ring's slack is what is over."""
    shape = Shape((None, None) if linear_draft else (5, 5), slots)
    longest = min(8, slots - 4)
    prefill, decode, score = ring_methods(longest)
    methods = [prefill, decode, replace(score, role="prefill_all")]
    compile_program(RingDecoder(shape), methods, max_length=60).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rings")


@pytest.fixture(scope="module")
def roomy(folder):
    with load(write(folder / "roomy.kvc", 12)) as program:
        yield program


@pytest.fixture(scope="module")
def tight(folder):
    with load(write(folder / "tight.kvc", 7)) as program:
        yield program


@pytest.fixture(scope="module")
def linear(folder):
    with load(write(folder / "linear.kvc", 12, linear_draft=True)) as program:
        yield program


@only(name=["roomy", "tight"])
@pytest.mark.parametrize("guesses", [None, 1, 7])
@pytest.mark.parametrize("name", ["roomy", "linear", "tight"])
def test_rings_give_the_same_tokens_with_a_draft(request, roomy, name, guesses):
    program = request.getfixturevalue(name)
    if name == "tight" and guesses == 7:
        guesses = 3
    with roomy.session() as lone, roomy.session() as target, program.session() as draft:
        pending, other = [], []
        for more in (PROMPT, [1, 2], [7]):
            plain = generate(lone, [*other, *more], max_tokens=12)
            run = generate(
                target,
                [*pending, *more],
                draft=draft,
                draft_tokens=guesses,
                max_tokens=12,
            )
            assert list(run) == list(plain)
            assert run.drafted > 0
            assert target.position == draft.position == lone.position
            pending, other = run.pending, plain.pending
        leaving = generate(target, [*pending, 2], draft=draft, draft_tokens=guesses)
        plain = generate(lone, [*other, 2])
        assert [next(leaving) for _ in range(3)] == [next(plain) for _ in range(3)]
        assert leaving.pending == plain.pending
        assert target.position == draft.position == lone.position


def test_more_guesses_than_a_ring_forgets_are_refused(roomy, tight):
    with roomy.session() as large, tight.session() as small, roomy.session() as other:
        with pytest.raises(
            BadSetting, match=r"draft_tokens: expected from 1 to 2: .* 3"
        ):
            generate(small, [1], draft=large, draft_tokens=3)
        with pytest.raises(
            BadSetting, match=r"draft_tokens: expected from 1 to 3: .* 4"
        ):
            generate(large, [1], draft=small, draft_tokens=4)
        with pytest.raises(
            BadSetting, match=r"draft_tokens: expected from 1 to 7: .* 8"
        ):
            generate(large, [1], draft=other, draft_tokens=8)
        assert len(list(generate(small, [1], draft=large, max_tokens=5))) == 5


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("which", ["target", "draft"])
def test_an_interrupted_call_leaves_a_ring_at_its_text(tight, which, at, late):
    """A call of as many tokens as it takes cannot be forgotten as a whole."""
    with tight.session() as target, tight.session() as draft, tight.session() as lone:
        run = generate(target, PROMPT, draft=draft, draft_tokens=2, max_tokens=30)
        session = {"target": target, "draft": draft}[which]
        with pytest.raises(KeyboardInterrupt), interrupted(session, at, late):
            list(run)
        text = [*PROMPT, *run.tokens]
        held = text[: target.position.item()]
        assert text[len(held) :] == list(run.pending)
        more = [*run.pending, 7]
        plain = generate(lone, [*held, *more], max_tokens=9)
        assert list(generate(target, more, max_tokens=9)) == list(plain)
