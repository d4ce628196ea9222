"""Latent attention: a latent and one key are cached of a token, not all heads' own."""

import numpy as np
import pytest
import torch
from hf_models import MODELS, build
from hf_parity import CAPACITY, NOTICED, eager_logits, text, zero

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Program, generate, load
from kvc.tools.reports.methods import describe_methods

SETTINGS = MODELS["deepseek_v3"].settings
WIDTH = SETTINGS["kv_lora_rank"] + SETTINGS["qk_rope_head_dim"]
CACHE = "kvc_cache.0.latents"
PROMPT = [3, 9, 27, 44, 8, 61, 12, 90, 17]
NEAR = {"float16": 0.01, "int8": 0.2}  # of the spread of logits


def opened(folder, cache: CacheConfig, recipe: str = "fp32") -> Program:
    path = folder / "model.kvc"
    model = build("deepseek_v3", shallow=True)
    bundle = export_hf(model, recipe=recipe, cache=cache, prefill_chunk=12)
    if recipe.startswith("cpu"):
        assert all(not method.left for method in describe_methods(bundle.program))
    bundle.save(path)
    return load(path)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("latents"), CacheConfig(CAPACITY)) as made:
        yield made


def test_a_token_takes_a_sixth_of_what_keys_and_values_of_all_heads_take(program):
    with program.session(capacity=CAPACITY) as session:
        cached = {n: a.shape for n, a in session.state.items() if "cache" in n}
        assert cached == {CACHE: (1, 1, CAPACITY, WIDTH)}
        expanded = SETTINGS["qk_nope_head_dim"] + SETTINGS["qk_rope_head_dim"]
        expanded += SETTINGS["v_head_dim"]
        assert expanded * SETTINGS["num_attention_heads"] == WIDTH * 6


def test_both_parts_of_a_row_are_read(program):
    wanted = eager_logits(build("deepseek_v3", shallow=True), text(11))[10]
    rank, differences = SETTINGS["kv_lora_rank"], []
    for part in (slice(0, 0), slice(0, rank), slice(rank, None)):
        with program.session(capacity=CAPACITY) as session:
            session.prefill(text(10))
            zero(session.state[CACHE][0, 0, 8, part])
            found = session.decode(text(11)[:, 10:])[0]
            differences.append(float(np.abs(found - wanted).max() / wanted.std()))
    assert differences[0] < NOTICED < min(differences[1:])


def test_the_text_is_that_of_transformers(program):
    model = build("deepseek_v3", shallow=True)
    made = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=30)
    expected = made[0, len(PROMPT) :].tolist()
    with program.session() as session:
        run = generate(session, PROMPT, max_new_tokens=30)
        assert [*run, *(run.pending if run.reason == "stop" else ())] == expected
        assert len(expected) > 5


@pytest.mark.parametrize(
    "dtype", ["int8", pytest.param("float16", marks=pytest.mark.exhaustive)]
)
def test_latents_may_be_of_another_dtype(dtype, tmp_path):
    wanted = eager_logits(build("deepseek_v3", shallow=True), text(20))
    cache = CacheConfig(CAPACITY, dtype=dtype)
    with opened(tmp_path, cache, "cpu_fp32") as made, made.session() as session:
        assert session.state[CACHE].dtype == dtype
        session.prefill(text(12))
        for place in range(12, 20):
            found = session.decode(text(20)[:, place : place + 1])[0]
            difference = np.abs(found - wanted[place]).max() / wanted.std()
            assert difference < NEAR[dtype]
