"""Architectures in `generate` of transformers, beside their bundles."""

import encoder_models
import hf_models
import pytest
import seeing_models
import seq2seq_models
import torch
from exported_models import exported_to
from transformers import GenerationMixin

from kvc.transformers import KvcForCausalLM, KvcForConditionalGeneration

pytestmark = pytest.mark.exhaustive

LENGTH = {"max_new_tokens": 12, "min_new_tokens": 12}
TEXTS = [
    "llama", "qwen3", "mistral", "gemma2", "gemma3_text", "phi", "gpt2", "gpt_neox",
    "falcon", "bloom", "olmo2", "mamba", "lfm2", "falcon_h1", "qwen3_next",
]  # fmt: skip
PAIRS = ["t5", "bart", "mbart", "marian", "whisper", "trocr"]
SEEING = ["llava", "internvl", "idefics3", "smolvlm", "gemma3", "qwen2_5_vl"]


def tokens(rows, count):
    made = torch.Generator().manual_seed(5)
    return torch.randint(3, 80, (rows, count), generator=made)


def seeded(model, **settings):
    torch.manual_seed(0)
    return GenerationMixin.generate(model, **{**LENGTH, **settings})


def check(model, kvc, given, *ways):
    model.generation_config.pad_token_id = 0
    kvc.generation_config.pad_token_id = 0
    for way in ({}, {"num_beams": 3}, *ways):
        wanted = seeded(model, **given, **way)
        assert torch.equal(seeded(kvc, **given, **way), wanted), way


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("batch", [None, 6])
def test_texts(name, batch, tmp_path):
    if name not in hf_models.MODELS:
        pytest.skip("the table of models lacks it")
    model = hf_models.build(name)
    kvc = KvcForCausalLM(exported_to(tmp_path, model, batch=batch))
    ids = tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    check(model, kvc, {"input_ids": ids, "attention_mask": mask})
    repeating = {"input_ids": ids[:1].repeat(1, 3)}
    guessed = seeded(kvc, **repeating, prompt_lookup_num_tokens=4)
    assert torch.equal(guessed, seeded(model, **repeating))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("batch", [None, 6])
def test_encoders_and_decoders(name, batch, tmp_path):
    model = seq2seq_models.build(name)
    if model.main_input_name == "input_ids":
        given = {"input_ids": tokens(2, 9)}
    else:
        one = torch.from_numpy(seq2seq_models.inputs_of(model)[0])
        given = {model.main_input_name: torch.cat([one, one.flip(-1)])}
    made = exported_to(tmp_path, model, given, batch=batch)
    check(model, KvcForConditionalGeneration(made), given)


@pytest.mark.parametrize("name", SEEING)
def test_pictures(name, tmp_path):
    model = seeing_models.build(*(seeing_models.MODELS | seeing_models.SIZED)[name])
    given = seen(model, name)
    kvc = KvcForConditionalGeneration(exported_to(tmp_path, model, given))
    check(model, kvc, given)


def seen(model, name):
    """Return two rows of text with a picture in each."""
    if name in seeing_models.SIZED:
        counts, more = (6, 4), {"image_grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]])}
        more["pixel_values"] = torch.randn(24 + 16, 3 * 2 * 4 * 4)
    else:
        joined = name in ("gemma3", "internvl") or seeing_models.in_parts(model)
        counts = (seeing_models.JOINED if joined else seeing_models.POSITIONS,) * 2
        pixels = torch.from_numpy(encoder_models.pixels(2))
        more = {
            "pixel_values": pixels[:, None] if seeing_models.in_parts(model) else pixels
        }
    ids = tokens(2, 6 + max(counts))
    for row, count in zip(ids, counts, strict=True):
        row[2 : 2 + count] = seeing_models.TOKEN
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
    if name == "gemma3":
        given["token_type_ids"] = (ids == seeing_models.TOKEN).long()
    if name in seeing_models.SIZED:
        given["mm_token_type_ids"] = (ids == seeing_models.TOKEN).long()
    return given
