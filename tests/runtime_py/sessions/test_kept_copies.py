"""Copies of states that cannot be rewound, kept at chosen positions."""

import random

import numpy as np
import pytest
import torch
from drafting_models import Summing, Table, write_table
from ring_models import RingDecoder, Shape, ring_methods, text
from session_contents import contents

from kvc.compiler import compile_program
from kvc.runtime import NotRewindable, generate, load

SHAPE = Shape(windows=(5, None), slots=12, length=96)
SINKS = Shape(windows=(4, 4), slots=12, keep=2)


def write_ring(path, shape):
    methods = ring_methods(shape.longest)
    compile_program(RingDecoder(shape).eval(), methods, "fp32").save(path)
    return path


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    torch.manual_seed(3)
    rows = torch.randn(19, 19) * 3
    with (
        load(write_table(folder / "summing.kvc", Summing(rows))) as summing,
        load(write_ring(folder / "ring.kvc", SHAPE)) as ring,
        load(write_ring(folder / "sinks.kvc", SINKS)) as sinks,
    ):
        yield {"summing": summing, "ring": ring, "sinks": sinks}


def keep(session, most=9):
    way = session.going_back
    way.keep_at(int(session.position[0]), most)
    way.keep()


def read(session, tokens):
    """Read tokens one by one, or in calls of up to three."""
    name = "read" if "read" in session.methods else "prefill"
    found = None
    for start in range(0, tokens.shape[1], 3):
        found = session.call(name, tokens[:, start : start + 3])
    return found


def far(session, name):
    """How far rings can go back, which a copy restores too."""
    return 0 if name == "summing" else int(session.rewindable[0])


@pytest.mark.parametrize("name", ["summing", "ring", "sinks"])
@pytest.mark.parametrize("seed", range(8))
def test_a_session_goes_back_to_where_copies_were_kept(programs, name, seed):
    chance = random.Random(seed)
    with programs[name].session() as session:
        kept, held = {}, []
        for _ in range(25):
            way, now = session.going_back, int(session.position[0])
            if chance.random() < 0.35:
                keep(session)
                kept[now] = contents(session), far(session, name)
            elif kept and chance.random() < 0.3:
                target = chance.choice(sorted(kept))
                session.rewind(now - target)
                assert (contents(session), far(session, name)) == kept[target]
                kept = {at: one for at, one in kept.items() if at <= target}
                held = held[:target]
            elif now < 60:
                new = chance.randint(1, 5)
                tokens = text(new, seed=chance.randint(0, 99))
                held += tokens[0].tolist()
                logits = read(session, tokens)
            assert list(way.kept) == sorted(kept, reverse=True)
            assert way.kept_nbytes or not any(kept)
        tokens = text(4, seed=seed)
        logits = read(session, tokens)
        with programs[name].session() as other:
            whole = np.array([[*held, *tokens[0]]])
            np.testing.assert_allclose(logits, read(other, whole), atol=1e-5)


def test_other_positions_cannot_be_reached(programs):
    with programs["summing"].session() as session:
        read(session, text(5))
        keep(session)
        read(session, text(5))
        before = contents(session)
        with pytest.raises(NotRewindable, match="kept at positions 5, but not at 7"):
            session.rewind(3)
        assert contents(session) == before
        assert session.going_back.to_one_of([[8, 6, 5, 0]]) == [5]
    with programs["ring"].session() as session:
        read(session, text(5))
        keep(session)
        read(session, text(30))
        with pytest.raises(NotRewindable, match="has been overwritten"):
            session.rewind(25)
        session.rewind(30)
        assert session.position == 5


def test_only_the_last_copies_are_kept(programs):
    with programs["summing"].session() as session:
        sizes = set()
        for _ in range(5):
            read(session, text(2))
            keep(session, 3)
            keep(session, 3)  # of the same position, once
            sizes.add(session.going_back.kept_nbytes)
        assert list(session.going_back.kept) == [10, 8, 6]
        assert len(sizes) == 3


def test_forks_have_the_copies_and_a_reset_drops_them(programs):
    for name in ("summing", "ring"):
        with programs[name].session() as session:
            read(session, text(5))
            keep(session)
            at = contents(session)
            read(session, text(20))
            with session.fork() as fork:
                fork.rewind(20)
                assert contents(fork) == at
                assert list(session.going_back.kept) == [5]
            session.reset()
            assert list(session.going_back.kept) == []
            assert session.going_back.kept_nbytes == 0


def test_copies_at_some_positions_do_not_undo_calls(programs):
    with programs["summing"].session() as session:
        read(session, text(5))
        keep(session)
        with pytest.raises(NotRewindable, match="at some positions alone"):
            session.going_back.forgettable_calls(["say"])


def test_a_prompt_stops_where_copies_are_to_be_kept(programs):
    prompt = text(20)[0].tolist()
    with programs["summing"].session() as session, programs["summing"].session() as one:
        for wanted in (1, 7, 19, 20):
            session.reset()
            session.going_back.keep_at(wanted)
            made = list(generate(session, prompt, max_tokens=5))
            assert list(session.going_back.kept) == [wanted]
            assert session.going_back.keeps_at is None
            one.reset()
            assert made == list(generate(one, prompt, max_tokens=5))
            session.rewind(int(session.position[0]) - wanted)
            again = list(generate(session, prompt[wanted:] or [made[0]], max_tokens=4))
            assert again[:3] == (made if prompt[wanted:] else made[1:])[:3]


def test_nothing_is_copied_where_all_can_be_rewound(tmp_path):
    path = write_table(tmp_path / "t.kvc", Table(torch.eye(16)))
    with load(path) as program, program.session() as session:
        read(session, text(5) % 16)
        keep(session)
        assert not session.going_back.needs_copies
        assert session.going_back.kept_nbytes == len(session.going_back.kept) == 0
