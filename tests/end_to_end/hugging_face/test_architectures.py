"""Every architecture: a tiny random model, its bundle, and the same logits from both.

Prefills of several lengths and in chunks, 40 decode steps that pass every window, and
a control: one row of one layer's cache is made wrong, and logits must show it.
"""

from pathlib import Path

import pytest
from daily import RARELY, only
from hf_models import NAMED, REFUSED, RUNNING, build
from hf_parity import CAPACITY, LENGTHS, NOTICED, TOLERANCE, compare

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face import FrequenciesFixed
from kvc.recipes import load_recipe
from kvc.schema.errors import CompileError


def check(name: str, folder: Path, **settings: object) -> None:
    parity = compare(name, folder, **settings)
    assert parity.prefill < TOLERANCE
    assert parity.decode < TOLERANCE
    assert parity.control > NOTICED


KINDS = ("keys", "values")


# One for each thing that the front end does. The others come with the exhaustive run,
# and some every day in tests of rows, rings, latents, text, and of the backend cpu.
DAILY = ["gemma4_text, shared caches"]


@only(name=DAILY)
@pytest.mark.parametrize(
    "name", [*DAILY, "gemma3_text", "deepseek_v2", "doge", "llama4_text"]
)
def test_prefill_and_decode_equal_the_model_without_a_cache(name, tmp_path):
    check(name, tmp_path, shallow=True)


def test_layers_that_attend_over_an_earlier_ones_cache_have_none():
    model = build("gemma4_text, shared caches", shallow=True)
    bundle = export_hf(model, cache=CacheConfig(CAPACITY), prefill_chunk=max(LENGTHS))
    states = {state.name for state in bundle.program.states}
    caches = {name for name in states if name.startswith("kvc_cache")}
    assert caches == {f"kvc_cache.{i}.{kind}" for i in (0, 1) for kind in KINDS}


# Caches of 64 positions; frequencies change at 32, or at 64.
LONG = [name for name in RUNNING if "longrope" in name]


@only(name=["phi3, longrope, part of each head, long texts"])
@pytest.mark.parametrize("name", [name for name in LONG if "long texts" in name])
def test_texts_longer_than_the_first_training_equal_the_model(name, tmp_path):
    with pytest.warns(FrequenciesFixed, match="has those of longer texts"):
        check(name, tmp_path, shallow=True)


@RARELY
@pytest.mark.filterwarnings("ignore::kvc.compiler.hugging_face.FrequenciesFixed")
@pytest.mark.parametrize("name", RUNNING)
def test_a_prefill_of_every_length_equals_the_model(name, tmp_path):
    check(name, tmp_path, lengths=range(1, 25))


# Rounded weights change logits themselves, and at times which expert a token goes to:
# only most of the best tokens are asked to be the same.
@RARELY
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("recipe", ["bf16", "xnnpack_q8"])
def test_recipes_stay_near_the_model(name, recipe, tmp_path):
    assert compare(name, tmp_path, recipe=recipe).agreement > 0.75


@RARELY
@pytest.mark.parametrize("name", NAMED)
def test_an_int8_cache_stays_near_the_model(name, tmp_path):
    recipe = load_recipe("fp32", cache="int8")
    assert compare(name, tmp_path, recipe=recipe).agreement > 0.75


REASONS = {
    "deepseek_v32": "an indexer chooses",
    "doge, experts": "depends on the other tokens of its call",
    "doge, long texts": r"longer than 32 tokens values in.*\) or --max-length 32",
    "openai-gpt": "code of its own",
    "xlnet": "code of its own",
    "xmod": r"modeling_xmod:\d+ asks for values of tensors",
}


# One for each place that refuses.
DAILY_REFUSED = [
    "deepseek_v32",
    "doge, experts",
    "doge, long texts",
    "openai-gpt",
    "phi3, longrope, long texts",
]


@only(name=DAILY_REFUSED)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_why(name):
    with pytest.raises(CompileError, match=REASONS[name]):
        export_hf(build(name), cache=CacheConfig(CAPACITY))
