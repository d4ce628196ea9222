"""Settings: a bundle's, a caller's, and what becomes of both."""

import json
import math
import warnings

import numpy as np
import pytest

from kvc.runtime import BadSetting, GenerationSettings, SettingIgnored
from kvc.runtime.generation import Arguments, settings_of
from kvc.runtime.generation.settings import _ELSEWHERE


def settled(config=None, **given):
    metadata = {} if config is None else {"generation_config": json.dumps(config)}
    return settings_of(metadata, given)


def test_without_any_settings_the_likeliest_token_is_taken_without_end():
    assert settled() == GenerationSettings()
    assert settled().temperature == 0
    assert settled({}) == GenerationSettings(top_k=50)


def test_a_bundles_settings_count():
    config = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.05,
        "eos_token_id": [7, 9],
        "max_new_tokens": 2048,
        "stop_strings": "END",
        "bos_token_id": 1,
        "pad_token_id": 0,
        "transformers_version": "5.23.0",
    }
    assert settled(config) == GenerationSettings(
        max_tokens=2048,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.05,
        stop_tokens=(7, 9),
        stop_strings=("END",),
    )


def test_a_bundle_that_does_not_say_do_sample_is_not_sampled():
    assert settled({"temperature": 0.6, "top_p": 0.9}).temperature == 0
    assert settled({"do_sample": False, "temperature": 0.6}).temperature == 0


def test_what_a_bundle_leaves_out_is_as_in_transformers():
    settings = settled({"do_sample": True})
    assert (settings.temperature, settings.top_k, settings.top_p) == (1.0, 50, 1.0)
    assert settled({"eos_token_id": 2}, temperature=0.5).top_k == 50
    assert settled({"do_sample": True}, top_k=0).top_k == 0
    assert settled(temperature=0.5).top_k == 0


@pytest.mark.parametrize(
    "given", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}]
)
def test_a_caller_who_shapes_chances_wants_to_sample(given):
    assert settled(**given).temperature > 0
    assert settled({"do_sample": False}, **given).temperature > 0
    assert settled(do_sample=False, **given).temperature == 0


def test_a_callers_settings_replace_the_bundles():
    config = {"do_sample": True, "temperature": 0.6, "eos_token_id": 5, "top_p": 0.9}
    assert settled(config, temperature=0).temperature == 0
    assert settled(config, do_sample=False).temperature == 0
    assert settled(config, top_p=1).top_p == 1.0
    assert settled(config, stop_tokens=[]).stop_tokens == ()
    assert settled(config, eos_token_id=np.int64(8)).stop_tokens == (8,)
    assert settled(config, temperature=None, seed=None).temperature == 0.6


def test_the_number_of_new_tokens_goes_before_the_whole_length():
    assert settled({"max_length": 9}).max_length == 9
    assert settled({"max_length": 9, "max_new_tokens": 5}) == settled(max_tokens=5, **K)
    assert settled({"max_length": 9}, max_new_tokens=5).max_length is None
    length = settled({"max_new_tokens": 5}, max_length=9)
    assert (length.max_tokens, length.max_length) == (None, 9)


K = {"top_k": 50, "do_sample": False}


def test_sampling_at_temperature_zero_is_refused():
    with pytest.raises(BadSetting, match="above 0, since do_sample is True"):
        settled(do_sample=True, temperature=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("max_new_tokens", "9"),
        ("max_length", -3),
        ("do_sample", 1),
        ("temperature", -0.5),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("top_p", math.nan),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("seed", -1),
        ("seed", 0.5),
        ("stop_tokens", [-1]),
        ("stop_tokens", "12"),
        ("stop_tokens", [1.0]),
        ("eos_token_id", [[1]]),
        ("stop_strings", [""]),
        ("stop_strings", [b"a"]),
        ("stop_strings", 3),
    ],
)
def test_an_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(BadSetting, match=f"^{name}: expected"):
        settled(**{name: value})


@pytest.mark.parametrize("name", ["temperature", "top_k", "eos_token_id"])
def test_an_impossible_value_of_a_bundle_says_where_it_is(name):
    with pytest.raises(BadSetting, match=f"^the bundle's generation_config, {name}: "):
        settled({name: "many"})


@pytest.mark.parametrize("text", ["", "[" * 9000, "3", "[]"])
def test_a_bundles_settings_are_an_object(text):
    with pytest.raises(BadSetting, match="generation_config: expected"):
        settings_of({"generation_config": text}, {})


def test_one_setting_under_two_names_is_refused():
    told = "max_tokens: .* max_new_tokens means the same"
    with pytest.raises(BadSetting, match=told):
        settled(max_tokens=3, max_new_tokens=3)


def test_numbers_of_numpy_are_numbers():
    settings = settled(temperature=np.float32(0.5), top_k=np.int32(4), seed=np.uint8(3))
    assert settings == GenerationSettings(temperature=0.5, top_k=4, seed=3)
    assert type(settings.top_k) is int


def test_settings_of_the_cache_are_ignored_with_one_warning():
    given = {"cache_implementation": "static", "max_cache_len": 64, "use_cache": True}
    with pytest.warns(SettingIgnored) as caught:
        assert settled(**given, past_key_values=object(), cache_config={}) == settled()
    assert len(caught) == 1
    said = str(caught[0].message)
    assert said.startswith("cache_implementation, cache_config, max_cache_len, ")
    assert "program.session(capacity=...)" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settled(use_cache=None)


def test_what_a_bundle_asks_for_in_vain_is_named_in_one_warning():
    config = {"num_beams": 4, "diversity_penalty": 0.3, "penalty_alpha": 0.6}
    with pytest.warns(SettingIgnored) as caught:
        settled({**config, "typical_p": 1.0, "length_penalty": 0.5})
    assert len(caught) == 1
    assert "num_beams=4, diversity_penalty=0.3, penalty_alpha=0.6" in str(
        caught[0].message
    )


def test_what_changes_nothing_passes_without_a_word():
    quiet = {"num_beams": 1, "eta_cutoff": 0.0, "bad_words_ids": None, "min_length": 0}
    assert settled(quiet) == settled({})
    assert settled(**quiet) == settled()
    assert settled({"use_cache": True, "cache_implementation": "hybrid"}) == settled({})


def test_an_argument_that_kvc_lacks_is_an_error():
    with pytest.raises(BadSetting, match=r"num_beams: expected 1: .*, got 4"):
        settled(num_beams=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        settled(temprature=0.5)


@pytest.mark.parametrize(
    ("name", "kvcs"),
    [("stop", "stop_strings"), ("temp", "temperature"), ("top_kk", "top_k")],
)
def test_names_of_other_libraries_are_told_by_their_own(name, kvcs):
    with pytest.raises(TypeError, match=f"{name}.*did you mean '{kvcs}'"):
        settings_of({}, {name: 1})


def test_the_names_of_other_libraries_lead_to_settings():
    assert set(_ELSEWHERE.values()) <= set(Arguments.__annotations__)
