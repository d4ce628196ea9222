"""Generation: prompts in chunks, reasons to stop, room."""

import pytest
from counting_model import counting_program
from hand_built import affine_program, write_bundle

from kvc.runtime import BadSetting, CacheOverflow, UnknownName, generate, load


@pytest.fixture
def session(tmp_path):
    with load(write_bundle(tmp_path / "g.kvc", counting_program())) as opened:
        yield opened.session()


def test_tokens_follow_the_prompt(session):
    run = generate(session, [7], max_tokens=4)
    assert list(run) == [8, 9, 10, 11]
    assert run.reason == "max_tokens"


def test_a_long_prompt_is_run_in_chunks(session):
    run = generate(session, [3, 4, 5, 6, 7, 8, 9, 10, 11], max_tokens=2)
    assert list(run) == [12, 13]
    assert run.prefill.tokens == 9
    assert run.decode.tokens == 1
    assert run.prefill.tokens_per_second > 0
    assert session.position == 10


def test_a_rest_shorter_than_the_least_chunk_goes_token_by_token(tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program(lower=4, upper=4))
    with load(path) as opened:
        session = opened.session()
        assert list(generate(session, [1, 2, 3, 4, 5, 6], max_tokens=1)) == [7]
        assert session.position == 6
        assert list(generate(session, [9], max_tokens=1)) == [10]


def test_a_stop_token_ends_it_and_is_not_handed_out(session):
    run = generate(session, [7], max_tokens=9, stop_tokens=[10])
    assert list(run) == [8, 9]
    assert run.reason == "stop"


def test_a_full_cache_ends_it(session):
    run = generate(session, list(range(14)), max_tokens=9)
    assert list(run) == [14, 15, 16]
    assert run.reason == "length"
    assert session.position == 16


def test_a_prompt_that_fills_the_cache_gives_one_token(session):
    run = generate(session, list(range(16)), max_tokens=9)
    assert list(run) == [16]
    assert run.reason == "length"


def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(session):
    with pytest.raises(CacheOverflow, match=r"17 positions from 0 on.* holds 16;"):
        generate(session, list(range(17)), max_tokens=1)
    assert session.position == 0
    list(generate(session, [1, 2, 3], max_tokens=1))
    with pytest.raises(CacheOverflow):
        generate(session, list(range(14)), max_tokens=1)


@pytest.mark.parametrize("token", [-1, 2**63])
def test_a_prompt_token_that_no_model_has_is_refused(tmp_path, token):
    path = write_bundle(tmp_path / "g.kvc", counting_program())
    with load(path) as program, pytest.raises(BadSetting, match=f"got {token}"):
        generate(program.session(), [1, token], max_tokens=1)


def test_without_a_capacity_nothing_limits_it(tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program(capacity=None))
    with load(path) as opened:
        run = generate(opened.session(), [0], max_tokens=100)
        assert [token % 32 for token in run] == [(i + 1) % 32 for i in range(100)]


def test_no_tokens_asked_for_means_that_nothing_runs(session):
    run = generate(session, [1], max_tokens=0)
    assert list(run) == []
    assert run.reason == "max_tokens"
    assert session.position == 0


def test_the_reason_is_open_until_the_end(session):
    run = generate(session, [1], max_tokens=2)
    assert next(run) == 2
    assert run.reason is None
    assert next(run) == 3
    assert run.reason == "max_tokens"
    assert list(run) == []


def test_sampling_with_a_seed_is_repeatable(session):
    def sample(seed):
        session.reset()
        settings = {"temperature": 3.0, "top_k": 20, "seed": seed}
        return list(generate(session, [1], max_tokens=8, **settings))

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt_tokens": []},
        {"max_tokens": -1},
        {"temperature": -0.5},
        {"temperature": float("nan")},
        {"top_k": 0},
    ],
)
def test_an_impossible_setting_is_named(session, settings):
    with pytest.raises(BadSetting, match=next(iter(settings))):
        generate(session, **{"prompt_tokens": [1], "max_tokens": 1, **settings})


def test_a_program_without_roles_is_refused(tmp_path):
    with (
        load(write_bundle(tmp_path / "a.kvc", affine_program())) as opened,
        pytest.raises(UnknownName, match="no method of the role 'prefill'"),
    ):
        generate(opened.session(), [1], max_tokens=1)


def test_a_call_that_does_not_fit_overflows_before_it_runs(session):
    import numpy as np

    for _ in range(4):
        session.fill(np.zeros((1, 4), np.int64))
    with pytest.raises(CacheOverflow) as caught:
        session.step(np.zeros((1, 1), np.int64))
    assert (caught.value.start, caught.value.capacity) == (16, 16)
