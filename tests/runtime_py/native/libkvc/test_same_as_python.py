"""Every kind of state: a session of C gives the bits of a session of Python."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from libkvc import Refused
from libkvc_models import both, kind_bundle, pair, ragged_bundle, save, speaker
from ring_models import RingDecoder, Shape, ring_methods
from session_kinds import KINDS

from kvc.compiler import compile_program
from kvc.runtime import NotRewindable
from kvc.runtime.bound_lists import bind_program
from kvc.schema.bounds import Columns
from kvc.schema.errors import NotEncoded

ORDINARY = (
    "linear", "index_copy", "int8", "int8, slots before heads", "float16",
    "float16, slots before heads", "recurrent", "shifting", "told",
)  # fmt: skip
COUNTS = (1, 3, 1, 2, 1, 1, 7, 1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            path = tmp_path_factory.mktemp("libkvc") / "model.kvc"
            made[name] = kind_bundle(name, path)
        return made[name]

    return find


def tokens(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 16, (1, count))


@pytest.mark.parametrize("name", ORDINARY)
def test_calls_give_the_bits_of_python(name, bundle):
    with pair(bundle(name)) as both_of_them:
        for seed, count in enumerate(COUNTS):
            method = "decode" if count == 1 else "prefill"
            both_of_them.call(method, tokens(count, seed))


@pytest.mark.parametrize("name", [n for n in ORDINARY if KINDS[n].goes_back])
def test_rewinding_gives_the_states_of_python(name, bundle):
    with pair(bundle(name)) as sessions:
        sessions.call("prefill", tokens(9, 0))
        sessions.rewind(4)
        sessions.call("decode", tokens(1, 1))
        sessions.rewind(sessions.position())
        sessions.call("prefill", tokens(3, 2))
        sessions.reset()
        sessions.call("prefill", tokens(2, 3))


@pytest.mark.parametrize("name", ORDINARY)
def test_forks_are_independent(name, bundle):
    with pair(bundle(name)) as sessions:
        sessions.call("prefill", tokens(5, 0))
        fork = sessions.fork()
        sessions.call("decode", tokens(1, 1))
        fork.call("prefill", tokens(3, 2))
        sessions.call("decode", tokens(1, 3))
        fork.close()


@pytest.mark.parametrize("name", ORDINARY)
def test_each_reads_what_the_other_saved(name, bundle, tmp_path):
    path = bundle(name)
    with both(path) as (program, opened), pair(path) as sessions:
        sessions.call("prefill", tokens(5, 0))
        sessions.call("decode", tokens(1, 1))
        crossed = sessions.crossed(program, opened, tmp_path)
        crossed.compare()
        crossed.call("decode", tokens(1, 2))
        if KINDS[name].goes_back:
            crossed.rewind(3)
            crossed.call("prefill", tokens(2, 3))
        crossed.close()


def test_growing_states(bundle, tmp_path):
    path = bundle("append")
    with both(path) as (program, opened), pair(path) as sessions:
        sessions.call("prefill", tokens(1, 0))
        sessions.call("decode", tokens(1, 1))
        sessions.rewind(1)
        fork = sessions.fork()
        fork.call("decode", tokens(1, 2))
        fork.close()
        sessions.call("decode", tokens(1, 3))
        crossed = sessions.crossed(program, opened, tmp_path)
        crossed.rewind(1)
        crossed.call("decode", tokens(1, 4))
        crossed.close()
        sessions.reset()
        sessions.call("prefill", tokens(48, 5))
        with pytest.raises(Refused, match="holds 48 tokens, 1 more") as refused:
            sessions.theirs.call("decode", tokens(1, 6))
        assert refused.value.code == "CACHE_OVERFLOW"
        sessions.compare()


def test_what_cannot_go_back_says_so_in_both(bundle):
    with pair(bundle("told")) as sessions:
        sessions.call("prefill", tokens(5, 0))
        with pytest.raises(NotRewindable):
            sessions.ours.rewind(2)
        with pytest.raises(Refused, match="it is plain, and calls") as refused:
            sessions.theirs.rewind(2)
        assert refused.value.code == "NOT_REWINDABLE"
        sessions.compare()


def test_a_chosen_capacity_is_that_of_python(bundle):
    with pair(bundle("linear"), capacity=8) as sessions:
        assert sessions.theirs.capacity == sessions.ours.capacity == 8
        sessions.call("prefill", tokens(8, 0))
        with pytest.raises(Refused, match="row 0 holds 8 tokens, 1 more") as refused:
            sessions.theirs.call("decode", tokens(1, 0))
        assert refused.value.code == "CACHE_OVERFLOW"
        sessions.compare()


@pytest.mark.parametrize("kind", ["state", "told", "rings", "kept rings"])
def test_rows_of_different_lengths(kind, tmp_path):
    path = ragged_bundle(kind, tmp_path / "model.kvc")
    dice = np.random.default_rng(0)
    with pair(path, batch=3) as sessions:
        for lengths in ([5, 0, 3], [1, 4, 2], [2, 2, 2]):
            many = dice.integers(0, 16, (3, 5))
            sessions.call("prefill", many, np.array(lengths))
        for active in ([True, False, True], [False, False, True]):
            one = dice.integers(0, 16, (3, 1))
            sessions.call("decode", one, np.array(active))
        if kind != "told":
            sessions.rewind(1, 0, 2)
        sessions.call("prefill", dice.integers(0, 16, (3, 4)), None)
        sessions.call("decode", dice.integers(0, 16, (3, 1)), None)


@pytest.mark.parametrize("keep", [0, 2])
def test_a_prefill_longer_than_a_ring_is_cut(keep, tmp_path):
    shape = Shape(windows=(5, None), slots=24, length=128, keep=keep)
    methods = ring_methods(shape.longest)
    path = save(RingDecoder(shape), methods, tmp_path / "model.kvc")
    dice = np.random.default_rng(1)
    with pair(path) as sessions:
        for count in (3, shape.longest, 33, 1, 1):
            method = "decode" if count == 1 else "prefill"
            sessions.call(method, dice.integers(0, 19, (1, count)))
        assert sessions.theirs.rewindable()[0] < sessions.position()
        with pytest.raises(NotRewindable):
            sessions.ours.rewind(30)
        with pytest.raises(Refused, match="has been overwritten: 30") as refused:
            sessions.theirs.rewind(30)
        assert refused.value.code == "NOT_REWINDABLE"
        sessions.rewind(2)
        sessions.call("decode", dice.integers(0, 19, (1, 1)))
        sessions.rewind(sessions.position())
        sessions.call("prefill", dice.integers(0, 19, (1, 30)))


def test_an_encoder_begins_the_session_anew(tmp_path):
    path = speaker(tmp_path / "model.kvc")
    rows = np.random.default_rng(0).random((1, 1, 8, 4), np.float32)
    with both(path) as (program, bundle), pair(path) as sessions:
        with pytest.raises(NotEncoded):
            sessions.ours.call("say", tokens(2, 0) % 11)
        with pytest.raises(Refused, match="say reads what hear makes") as refused:
            sessions.theirs.call("say", tokens(2, 0) % 11)
        assert refused.value.code == "NOT_ENCODED"
        sessions.call("hear", rows[:, :, :5])
        sessions.call("say", tokens(4, 1) % 11)
        sessions.call("say", tokens(2, 2) % 11)
        crossed = sessions.crossed(program, bundle, tmp_path)
        crossed.call("say", tokens(2, 3) % 11)
        crossed.close()
        sessions.call("hear", rows[:, :, 2:8])
        sessions.call("say", tokens(3, 4) % 11)


def test_a_prompt_is_cut_into_lengths_that_have_lists(tmp_path):
    shape = Shape(windows=(5, None), slots=24, length=128)
    methods, path = ring_methods(shape.longest), tmp_path / "model.kvc"
    bundle = compile_program(RingDecoder(shape).eval(), methods, "cpu_fp32")
    bounds, _ = bind_program(bundle.program)
    assert bounds is not None
    few = tuple(one for one in bounds.lists if one.columns["uppers"][0] < 2)
    prefill = few[0]
    for size in (4, 16):
        fixed = {name: np.array([size]) for name in ("lowers", "uppers")}
        wide = next(one for one in bounds.lists if one.method == prefill.method
                    and one.columns["uppers"][0] > 16)  # fmt: skip
        columns = Columns({**wide.columns, **fixed})
        few += (replace(wide, columns=columns),)
    bundle.with_bounds(replace(bounds, lists=few)).save(path)
    tokens = np.random.default_rng(0).integers(0, 19, 23)
    with both(path) as (program, opened), opened.session() as session:
        ours, last = program.session(), None
        for first, count in ((0, 16), (16, 4)):
            ours.prefill(tokens[None, first : first + count])
        for token in tokens[20:]:
            last = ours.decode(np.array([[token]]))
        found = session.step(tokens.tolist())
        assert session.position() == [23]
        assert last is not None
        assert found.tobytes() == last.tobytes()
