"""Bundles of recipes compute what the recipes say: they equal a model that rounds so.

Beside a model in float32, what is a little wrong hides among what rounding changes.
"""

from pathlib import Path

import pytest
from daily import RARELY, only
from hf_models import LATENT, NAMED, RECURRENT
from hf_quality import EQUAL, WAYS, Way, equal_texts, qualities

INT8 = Way("cpu_q8", "int8")
NOTICED = 1e-4
# In each text that was tried some value is a tie, where the order of a sum decides.
TIED = ("qwen3_next", "cpu_bf16")


def check(name: str, folder: Path, *ways: Way, shallow: bool = False) -> None:
    _, found = qualities(name, folder, ways, shallow)
    for way, quality in found.items():
        # None: which has no such caches.
        if quality is not None and (name, str(way)) != TIED:
            assert quality.rounded < EQUAL[way.cache], way
            assert quality.control > NOTICED, way


# Of experts and, every day, of latents; the exhaustive run has all.
@only(name=["deepseek_v3"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_int8_weights_and_caches_equal_a_model_that_rounds(name, tmp_path):
    check(name, tmp_path, INT8, shallow=True)


@only(recipe=["cpu_q4"])
@pytest.mark.parametrize("recipe", ["xnnpack_q4", "cpu_q4"])
def test_a_recipe_equals_a_model_that_rounds(recipe, tmp_path):
    check("qwen3", tmp_path, Way(recipe), shallow=True)


# Its body carries a state that XNNPACK would have to write while it reads it.
@RARELY
def test_a_scan_whose_body_xnnpack_runs_keeps_the_state_that_it_reads(tmp_path):
    check("olmo_hybrid", tmp_path, Way("xnnpack_q8"), shallow=True)


@RARELY
@pytest.mark.parametrize("name", NAMED | RECURRENT | LATENT)
def test_every_recipe_equals_a_model_that_rounds(name, tmp_path):
    check(name, tmp_path, *WAYS, INT8)


@RARELY
def test_texts_without_ties_are_equal_bit_for_bit(tmp_path):
    assert equal_texts(*TIED, tmp_path, count=24, length=3) > 12
