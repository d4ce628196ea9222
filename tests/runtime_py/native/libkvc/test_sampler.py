"""libkvc chooses the tokens that Python chooses: settings, processors, seeds."""

import json
import random

import numpy as np
import pytest
from generation_library import Refused, Sampler

from kvc.runtime.generation.processors import processors_of
from kvc.runtime.generation.sampling import Chooser
from kvc.runtime.generation.settings import settings_of
from kvc.schema.errors import KvcError

UNUSABLE_LOGITS, BAD_ARGUMENT = 27, 1
SEEDS = (0, 1, 7, 2**31, 2**32, 2**40 + 3, 2**63 - 1, 2**64 - 1)


def drawn_settings(rng, vocabulary):
    """Return settings of which each is given in some of the cases."""

    def token():
        return rng.randrange(vocabulary)

    def tokens(most):
        return [token() for _ in range(rng.randint(1, most))]

    def biases():
        return [[tokens(3), rng.choice((-2.0, 1.5, 0.1))] for _ in range(4)]

    ways = {
        "temperature": (0.7, lambda: rng.choice((0.3, 0.7, 1.0, 2.5, 1e-3, 0))),
        "top_k": (0.5, lambda: rng.choice((0, 1, 3, 50, vocabulary, vocabulary + 5))),
        "top_p": (0.5, lambda: rng.choice((0.0, 0.1, 0.5, 0.9, 0.999, 1))),
        "min_p": (0.3, lambda: rng.choice((0.0, 0.01, 0.3, 1.0))),
        "typical_p": (0.3, lambda: rng.choice((0.1, 0.5, 0.95, 1.0))),
        "repetition_penalty": (0.3, lambda: rng.choice((0.5, 1.1, 3.0))),
        "frequency_penalty": (0.3, lambda: rng.choice((-0.5, 0.2, 1.0))),
        "presence_penalty": (0.3, lambda: rng.choice((-0.5, 0.2))),
        "no_repeat_ngram_size": (0.3, lambda: rng.choice((0, 1, 2, 3))),
        "sequence_bias": (0.2, biases),
        "logit_bias": (0.2, lambda: {str(token()): -3.0, str(token()): 0.7}),
        "bad_words_ids": (0.2, lambda: [tokens(2), tokens(2)]),
        "eos_token_id": (0.3, lambda: rng.choice((token(), tokens(2)))),
        "min_new_tokens": (0.2, lambda: rng.randrange(5)),
        "min_length": (0.2, lambda: rng.randrange(20)),
        "suppress_tokens": (0.2, lambda: tokens(3)),
        "begin_suppress_tokens": (0.2, lambda: tokens(3)),
        "do_sample": (0.3, lambda: rng.choice((True, False))),
    }
    made = {
        name: make() for name, (share, make) in ways.items() if rng.random() < share
    }
    if made.get("do_sample") and made.get("temperature") == 0:
        del made["temperature"]
    return made


def drawn_logits(rng, numbers, vocabulary):
    """Return logits, some with ties, and a few that cannot be used."""
    kind = rng.random()
    logits = numbers.standard_normal(vocabulary) * rng.choice((0.1, 1, 5))
    if kind < 0.2:
        logits = np.round(logits)
    if kind > 0.9:
        logits[numbers.random(vocabulary) < 0.3] = -np.inf
    if kind > 0.99:
        logits[rng.randrange(vocabulary)] = rng.choice((np.nan, np.inf))
    return logits.astype(np.float32)


def python_settings(settings, config):
    """Return Python's settings; tokens that are texts in JSON are ints there."""
    given = dict(settings)
    if "logit_bias" in given:
        given["logit_bias"] = {int(key): x for key, x in given["logit_bias"].items()}
    metadata = {} if config is None else {"generation_config": json.dumps(config)}
    return settings_of(metadata, given)


def python_choice(chooser, logits):
    try:
        with np.errstate(all="ignore"):
            return chooser.choose(logits)
    except KvcError as error:
        return str(error).replace(" or the form of the answer", "")


def library_choice(sampler, logits):
    try:
        return sampler.choose(logits)
    except Refused as refused:
        return str(refused) if refused.code == UNUSABLE_LOGITS else refused.code


@pytest.mark.parametrize("case", range(8))
def test_tokens_are_those_of_python(case):
    rng = random.Random(case)
    for _ in range(250):
        vocabulary = rng.choice((2, 5, 11, 64, 129, 300, 1000, 5000))
        settings = drawn_settings(rng, vocabulary) | {"seed": rng.choice(SEEDS)}
        config = rng.choice((None, {}, drawn_settings(rng, vocabulary)))
        before = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 12))]
        try:
            wanted = python_settings(settings, config)
        except KvcError:
            with pytest.raises(Refused, match="do_sample is true"):
                Sampler(settings, config)
            continue
        rules = processors_of(wanted, len(before), len(before))
        chooser = Chooser(wanted, before, 0, rules)
        sampler = Sampler(settings, config)
        sampler.begin(before, vocabulary)
        numbers = np.random.default_rng(rng.randrange(2**30))
        for _ in range(8):
            logits = drawn_logits(rng, numbers, vocabulary)
            expected = python_choice(chooser, logits)
            assert library_choice(sampler, logits) == expected, (settings, config)
            if isinstance(expected, str):
                break


def test_a_large_vocabulary_is_halved_as_in_python():
    settings = {"temperature": 1.3, "top_p": 0.97, "seed": 11}
    chooser = Chooser(python_settings(settings, None), [1])
    sampler = Sampler(settings)
    sampler.begin([1], 150_000)
    numbers = np.random.default_rng(5)
    for _ in range(20):
        logits = numbers.standard_normal(150_000).astype(np.float32)
        assert sampler.choose(logits) == chooser.choose(logits)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_numbers_are_those_of_numpy(seed):
    # Of 2**16 equal logits, the token tells the first bits of the random number.
    logits = np.zeros(2**16, np.float32)
    sampler = Sampler({"temperature": 1.0, "top_k": 0, "seed": seed})
    sampler.begin([0], logits.size)
    numbers = np.random.default_rng(seed)
    expected = [int(numbers.random() * logits.size) for _ in range(200)]
    assert [sampler.choose(logits) for _ in expected] == expected


def test_without_a_seed_answers_differ():
    logits = np.zeros(2**16, np.float32)

    def drawn():
        sampler = Sampler({"temperature": 1.0, "top_k": 0})
        sampler.begin([0], logits.size)
        return [sampler.choose(logits) for _ in range(4)]

    assert drawn() != drawn()


def test_an_answer_begins_anew_with_its_seed():
    logits = np.zeros(100, np.float32)
    sampler = Sampler({"temperature": 1.0, "seed": 3, "frequency_penalty": 2.0})
    answers = []
    for _ in range(2):
        sampler.begin([5], 100)
        answers.append([sampler.choose(logits) for _ in range(20)])
    assert answers[0] == answers[1]


REFUSED = {
    "temperature": -1,
    "top_k": 1.5,
    "top_p": 1.1,
    "min_p": "0.1",
    "typical_p": True,
    "repetition_penalty": 0,
    "frequency_penalty": [],
    "no_repeat_ngram_size": -2,
    "sequence_bias": [[[], 1.0]],
    "logit_bias": {"x": 1.0},
    "bad_words_ids": [[]],
    "seed": -1,
    "stop_tokens": [1, -1],
    "stop_strings": [""],
    "num_beams": 2,
    "max_tokens": "9",
    "do_sample": 1,
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_impossible_setting_is_refused(name):
    with pytest.raises(Refused, match=f"^{name}: expected") as caught:
        Sampler({name: REFUSED[name]})
    assert caught.value.code == BAD_ARGUMENT


@pytest.mark.parametrize("name", [one for one in REFUSED if one != "num_beams"])
def test_an_impossible_setting_of_the_bundle_is_refused_as_in_python(name):
    config = {name: REFUSED[name]}
    with pytest.raises(KvcError, match="the bundle's generation_config"):
        python_settings({}, config)
    with pytest.raises(Refused, match=f"^the bundle's generation_config, {name}: exp"):
        Sampler({}, config)


def test_a_setting_under_two_names_is_refused():
    with pytest.raises(Refused, match="max_new_tokens means the same"):
        Sampler({"max_tokens": 1, "max_new_tokens": 1})


def test_an_unknown_setting_is_refused():
    with pytest.raises(Refused, match="temperatur is not a setting"):
        Sampler({"temperatur": 1.0})


def test_sampling_at_temperature_0_is_refused():
    with pytest.raises(Refused, match="expected above 0, since do_sample is true"):
        Sampler({"temperature": 0, "do_sample": True})


def test_a_bias_of_a_token_outside_the_vocabulary_is_refused():
    sampler = Sampler({"bad_words_ids": [[9]]})
    with pytest.raises(Refused, match=r"tokens below 4, .* found 9"):
        sampler.begin([0], 4)
