"""The loop of libkvc: the tokens of Python's `generate`, and why an answer ends."""

import numpy as np
import pytest
from counting_model import counting_program
from generation_library import CACHE_OVERFLOW, Generator, Refused
from hand_built import write_bundle

from kvc.runtime import CacheOverflow, generate, load


@pytest.fixture
def program(tmp_path):
    with load(write_bundle(tmp_path / "g.kvc", counting_program())) as opened:
        yield opened


def generator_of(session, counts=True, **settings):
    """Return a generator whose model is a session of Python."""

    def step(tokens):
        try:
            for token in tokens:
                logits = session.call("step", np.array([[token]]))
        except CacheOverflow as error:
            raise Refused(CACHE_OVERFLOW, str(error)) from error
        return logits.reshape(-1)

    position = (lambda: int(session.position[0])) if counts else (lambda: -1)
    capacity = session.capacity if counts else -1
    return Generator(step, position, capacity, settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 4},
        {"max_tokens": 0},
        {"max_length": 5},
        {"max_tokens": 9, "stop_tokens": [10]},
        {"max_tokens": 9, "eos_token_id": [30, 9]},
        {"max_tokens": 9, "stop_tokens": 8, "min_new_tokens": 2},
        {"max_tokens": 3, "forced_eos_token_id": [5, 4]},
        {"max_tokens": 3, "forced_bos_token_id": 2},
        {"max_tokens": 3, "begin_suppress_tokens": [8], "forced_bos_token_id": 2},
        {"temperature": 1.5, "top_k": 0, "seed": 3, "max_tokens": 9},
        {"temperature": 5.0, "top_k": 0, "seed": 4, "no_repeat_ngram_size": 1},
        {},
    ],
    ids=str,
)
def test_an_answer_is_that_of_python(program, settings):
    with program.session() as expected, program.session() as found:
        wanted = generate(expected, [7], **settings)
        tokens = list(wanted)
        generator = generator_of(found, **settings)
        end = generator.generate([7])
        assert (generator.tokens, end) == (tokens, wanted.reason)
        assert generator.pending == list(wanted.pending)
        assert found.position == expected.position
        # The next answer begins with what has not run.
        if settings == {"max_length": 5}:
            return
        history = [7, *tokens][: expected.position[0]]
        if expected.position[0] + len(wanted.pending) < expected.capacity:
            more = generate(expected, [*wanted.pending, 1], history=history, **settings)
            tokens = list(more)
            end = generator.generate([*generator.pending, 1], history)
            assert (generator.tokens, end) == (tokens, more.reason)


def test_a_prompt_runs_in_one_step(program):
    with program.session() as session:
        generator = generator_of(session, max_tokens=3)
        assert generator.generate([3, 4, 5]) == "max_tokens"
        assert (generator.answer.prompt_tokens, generator.answer.steps) == (3, 2)
        assert generator.answer.prompt_seconds > 0
        assert generator.answer.step_seconds > 0


def test_the_caller_ends_an_answer(program):
    with program.session() as session:
        generator = generator_of(session)
        assert generator.generate([7], ends=lambda token: token == 9) == "caller"
        assert (generator.tokens, generator.pending) == ([8, 9], [9])


def test_a_limit_counts_more_than_the_caller(program):
    with program.session() as session:
        generator = generator_of(session, max_tokens=1)
        assert generator.generate([7], ends=lambda _: True) == "max_tokens"


def test_a_full_cache_ends_an_answer(program):
    with program.session() as session:
        generator = generator_of(session)
        assert generator.generate(range(14)) == "length"
        assert generator.tokens == [14, 15, 16]
        assert session.position == session.capacity == 16


def test_a_full_cache_of_a_model_that_does_not_count_ends_an_answer(program):
    with program.session() as session:
        generator = generator_of(session, counts=False)
        assert generator.generate(range(14)) == "length"
        assert generator.tokens == [14, 15, 16]


def test_a_prompt_without_room_is_refused_before_anything_runs(program):
    with program.session() as session:
        generator = generator_of(session)
        with pytest.raises(
            Refused, match=r"has 17 tokens, .* room for 16: it holds 0 of"
        ):
            generator.generate(range(17))
        assert session.position == 0
        assert generator.pending == list(range(17))


def test_a_prompt_without_tokens_is_refused(program):
    refused = pytest.raises(Refused, match="expected at least one token")
    with program.session() as session, refused:
        generator_of(session).generate([])


def test_a_prompt_beyond_max_length_is_refused(program):
    refused = pytest.raises(Refused, match="max_length: expected more than 3, ")
    with program.session() as session, refused:
        generator_of(session, max_length=3).generate([1, 2, 3])


def test_a_failure_tells_what_has_run():
    ran = []

    def step(tokens):
        ran.extend(tokens)
        if len(ran) > 3:
            raise Refused(26, "the model is broken")
        return np.arange(5.0)

    generator = Generator(step, lambda: min(len(ran), 3), -1, {})
    with pytest.raises(Refused, match="the model is broken") as caught:
        generator.generate([1, 2])
    assert caught.value.code == 26
    assert generator.tokens == [4, 4]
    assert generator.answer.end == 0
    assert generator.pending == [4]


def test_unusable_logits_end_in_an_error():
    logits = np.array([1, np.nan, 2])
    generator = Generator(lambda _: logits, lambda: -1, -1, {})
    with pytest.raises(Refused, match="cannot be used: NaN is among them"):
        generator.generate([1])


def test_settings_of_the_bundle_that_have_no_effect_are_told():
    config = {"num_beams": 4, "guidance_scale": 1.0, "top_h": 0.5, "do_sample": False}
    generator = Generator(lambda _: np.zeros(3), lambda: -1, -1, {}, config)
    assert generator.ignored == (
        "the bundle's generation_config: num_beams=4, top_h=0.5: ignored; kvc only "
        "takes the likeliest token or samples"
    )


def test_stop_strings_are_told():
    config = {"stop_strings": ['"end"', "\n"]}
    generator = Generator(lambda _: np.zeros(3), lambda: -1, -1, {}, config)
    assert generator.stop_strings == ['"end"', "\n"]
