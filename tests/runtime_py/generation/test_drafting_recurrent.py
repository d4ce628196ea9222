"""Drafts over states that go back only to where calls began (`snapshots`)."""

import gc

import numpy as np
import pytest
import torch
from drafting_models import CountingChecks, Summing, Table, write_table
from interrupted_calls import interrupted

from kvc.runtime import BadSetting, NotRewindable, generate, load
from kvc.runtime.sessions.going_back import GoingBack

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]  # more than a chunk
ROWS = {"target": 0.0, "similar": 0.6, "other": 9.0}  # noise


def rows(noise):
    torch.manual_seed(3)
    return torch.randn(16, 16) * 3 + noise * torch.randn(16, 16)


@pytest.fixture(scope="module", params=[1, 3])
def programs(tmp_path_factory, request):
    """Models that guess the same, mostly the same, and something else.

    Checks take 1 token or more, or 3 or more.
    """
    folder = tmp_path_factory.mktemp("recurrent")
    made = {
        name: load(write_table(folder / name, Summing(rows(noise)), request.param))
        for name, noise in ROWS.items()
    }
    made["table"] = load(write_table(folder / "table", Table(rows(0.0))))
    yield made
    for program in made.values():
        program.close()


@pytest.fixture
def target(programs):
    with programs["target"].session(snapshots=1) as session:
        yield session


@pytest.fixture
def lone(programs):
    with programs["target"].session() as session:
        yield session


@pytest.fixture
def similar(programs):
    with programs["similar"].session(snapshots=4) as session:
        yield session


def assert_at(session, text):
    """Check that a session holds this text and nothing else."""
    assert session.position == len(text)
    assert session.state["total"] == sum(text)


def assert_goes_on(run, target, draft):
    """Check that what is not pending is held by both."""
    text = [*PROMPT, *run.tokens]
    held = text[: len(text) - len(run.pending)]
    assert text[len(held) :] == list(run.pending)
    assert_at(target, held)
    assert_at(draft, held)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ROWS)
def test_a_draft_changes_nothing_but_the_calls(programs, target, lone, name, count):
    with programs[name].session(snapshots=count) as draft:
        pending, other = [], []
        for more in (PROMPT, [1, 2], [7]):
            plain = generate(lone, [*other, *more], max_tokens=13)
            run = generate(
                target,
                [*pending, *more],
                draft=draft,
                draft_tokens=count,
                max_tokens=13,
            )
            assert list(run) == list(plain)
            assert run.drafted > 0
            for name in ("total", "position"):
                assert target.state[name] == draft.state[name] == lone.state[name]
            pending, other = run.pending, plain.pending


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("way", ["close", "drop", "look", "look at the draft"])
def test_leaving_early_leaves_both_at_their_text(target, lone, similar, way, count):
    plain = generate(lone, PROMPT, max_tokens=20)
    run = generate(target, PROMPT, draft=similar, max_tokens=20)
    assert [next(run) for _ in range(count)] == [next(plain) for _ in range(count)]
    text, pending, tokens = [*PROMPT, *run.tokens[:-1]], run.pending, run.tokens
    if way == "close":
        run.close()
    elif way == "drop":
        run = None
        gc.collect()
    elif way == "look at the draft":
        assert_at(similar, text)
    assert_at(target, text)
    assert_at(similar, text)
    if run is None:
        run = generate(target, pending, draft=similar, max_tokens=20 - count)
        assert [*tokens, *run] == [*tokens, *plain]
    elif way != "close":
        assert list(run) == list(plain)
        assert_goes_on(run, target, similar)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("which", ["target", "draft"])
def test_an_interrupted_call_leaves_both_at_their_text(
    target, similar, which, at, late
):
    session = {"target": target, "draft": similar}[which]
    run = generate(target, PROMPT, draft=similar, max_tokens=50)
    with pytest.raises(KeyboardInterrupt), interrupted(session, at, late):
        list(run)
    text = [*PROMPT, *run.tokens]
    held = text[: len(text) - len(run.pending)]
    assert_at(target, held)
    assert_at(similar, [*PROMPT, *run.tokens][: similar.position.item()])
    assert similar.position <= target.position


@pytest.mark.parametrize("at", range(1, 7))
def test_an_interrupt_just_after_going_back_leaves_both_at_their_text(
    target, similar, monkeypatch, at
):
    calls, go_back = [], GoingBack.to_one_of

    def interrupted_late(self, ends):
        found = go_back(self, ends)
        calls.append(found)
        if len(calls) == at:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(GoingBack, "to_one_of", interrupted_late)
    run = generate(target, PROMPT, draft=similar, max_tokens=50)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    text = [*PROMPT, *run.tokens]
    held = text[: target.position.item()]
    assert_at(target, held)
    assert text[len(held) :] == list(run.pending)
    assert_at(similar, text[: similar.position.item()])
    assert similar.position <= target.position


def test_an_interrupt_while_it_settles_is_made_up_for_before_the_next_use(
    target, lone, similar
):
    plain = generate(lone, PROMPT, max_tokens=20)
    run = generate(target, PROMPT, draft=similar, max_tokens=20)
    ahead = 0
    while not ahead:  # until tokens are held that nobody has got
        assert next(run) == next(plain)
        ahead = len(run._source._drafted[0].ahead)
    text = [*PROMPT, *run.tokens[:-1]]
    with interrupted(target, 1, late=False), pytest.raises(KeyboardInterrupt):
        run.close()
    del run
    gc.collect()
    held = target.position.item()
    assert_at(target, text[:held])
    assert_at(similar, text[: similar.position.item()])


def test_a_draft_that_keeps_fewer_copies_than_guesses_is_refused(programs, target):
    with programs["similar"].session(snapshots=2) as draft:
        with pytest.raises(BadSetting, match=r"to 2: .*`snapshots` .* got 3"):
            generate(target, PROMPT, draft=draft, draft_tokens=3)
        assert target.position == draft.position == 0


def test_a_state_that_only_checks_write_is_found_before_anything_runs(
    programs, tmp_path
):
    """Its sessions can forget what decode did, but not a check."""
    path = write_table(tmp_path / "checks.kvc", CountingChecks(rows(0.0)))
    with load(path) as program, programs["table"].session() as draft:
        with program.session() as target:
            with pytest.raises(NotRewindable, match="the state checks cannot"):
                generate(target, PROMPT, draft=draft)
            assert target.position == draft.position == 0
        with program.session(snapshots=1) as target, program.session() as lone:
            run = generate(target, PROMPT, draft=draft, max_tokens=20)
            assert list(run) == list(generate(lone, PROMPT, max_tokens=20))
            assert target.position == draft.position == lone.position


def test_a_draft_that_cannot_forget_what_the_target_lacks_is_left_as_it_is(
    target, similar
):
    target.say(np.array([[2]]))
    for _ in range(6):
        similar.say(np.array([[2]]))
    run = generate(target, PROMPT, draft=similar)
    with pytest.raises(NotRewindable, match="copies were kept at positions"):
        next(run)
    assert_at(target, [2])
    assert_at(similar, [2] * 6)
