"""Models without a cache: the same embeddings and logits, ragged rows and all."""

import numpy as np
import pytest
import torch
from daily import RARELY, only
from encoder_models import (
    NOTICED,
    TEXTS,
    TOLERANCE,
    build,
    compare,
    eager_pictures,
    pixels,
    rows,
)

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import load
from kvc.schema.errors import BadModelSetting, UnsupportedModel
from kvc.tools.reports.methods import describe_methods

# Every day one of each kind of positions; all come with the exhaustive run.
QUICK = ("bert", "modernbert")


def check(found):
    assert found.far < TOLERANCE
    assert min(found.padded, found.changed) > NOTICED


@only(name=["modernbert"])
@pytest.mark.parametrize("name", QUICK)
def test_embeddings_are_those_of_the_model(name, tmp_path):
    check(compare(name, tmp_path))


@RARELY
@pytest.mark.parametrize("name", [name for name in TEXTS if name not in QUICK])
def test_embeddings_of_every_architecture_are_those_of_the_model(name, tmp_path):
    found = compare(name, tmp_path)
    assert found.far < TOLERANCE
    # Padding after the last token is never seen by a causal model.
    assert found.changed > NOTICED
    assert found.padded > NOTICED or name == "llama"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param("bert", "classify", marks=RARELY),
        ("roberta", "fill_mask"),
        pytest.param("distilbert", "classify_tokens", marks=RARELY),
    ],
)
def test_logits_are_those_of_the_model(name, task, tmp_path):
    found = compare(name, tmp_path, task)
    assert found.far < TOLERANCE
    assert found.changed > NOTICED


@RARELY
def test_a_models_own_mean_is_of_tokens_alone(tmp_path):
    check(compare("modernbert", tmp_path, "classify", classifier_pooling="mean"))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param("vit", "classify", marks=RARELY),
        ("clip", "embed"),
        pytest.param("siglip", "embed", marks=RARELY),
        pytest.param("dinov2", "embed", marks=RARELY),
    ],
)
def test_pictures_give_what_the_model_does(name, task, tmp_path):
    model, given = build(name, task), pixels(3)
    export_hf(model).save(tmp_path / "model.kvc")
    method = "embed_image" if task == "embed" else "classify_image"
    wanted = eager_pictures(model, given)
    with load(tmp_path / "model.kvc") as program:
        found = program.call(method, given)
        alone = program.call(method, given[1:2])
    assert np.abs(found - wanted).max() < TOLERANCE * wanted.std()
    assert np.abs(alone - wanted[1:2]).max() < TOLERANCE * wanted.std()
    assert np.abs(found - wanted[[1, 2, 0]]).max() > NOTICED * wanted.std()


@RARELY
def test_a_picture_without_a_class_token_is_pooled_as_the_model_does(tmp_path):
    model, given = build("siglip_vision_model"), pixels(3)
    export_hf(model, recipe="cpu_fp32").save(tmp_path / "model.kvc")
    with torch.no_grad():
        made = model(pixel_values=torch.from_numpy(given))
    wanted, first = made.pooler_output.numpy(), made.last_hidden_state[:, 0].numpy()
    with load(tmp_path / "model.kvc") as program:
        found = program.embed_image(given)
    assert np.abs(found - wanted).max() < TOLERANCE * wanted.std()
    assert np.abs(found - first).max() > NOTICED * wanted.std()


def test_a_picture_that_nothing_makes_one_of_is_refused():
    with pytest.raises(UnsupportedModel, match="no class token"):
        export_hf(build("ijepa"))


def test_both_towers_lie_in_one_bundle_and_texts_end_at_their_last_token(tmp_path):
    model = build("clip")
    export_hf(model, recipe="cpu_fp32").save(tmp_path / "clip.kvc")
    tokens, lengths = rows((9, 3, 5))
    tokens[np.arange(3), lengths - 1] = model.config.text_config.eos_token_id
    real = np.arange(9) < lengths[:, None]
    with torch.no_grad():
        wanted = model.get_text_features(
            input_ids=torch.from_numpy(np.where(real, tokens, 1)),
            attention_mask=torch.from_numpy(real.astype(np.int64)),
        ).pooler_output.numpy()
    with load(tmp_path / "clip.kvc") as program:
        assert sorted(program.methods) == ["embed", "embed_image"]
        found = program.embed(tokens, lengths)
    assert np.abs(found - wanted).max() < TOLERANCE * wanted.std()
    assert np.abs(found - wanted[[1, 2, 0]]).max() > NOTICED * wanted.std()


@RARELY
def test_all_positions_of_a_siglip_text_count_padding_too(tmp_path):
    model = build("siglip")
    export_hf(model).save(tmp_path / "siglip.kvc")
    tokens, _ = rows((16, 16))
    tokens[:, 5:] = 1
    with torch.no_grad():
        made = model.get_text_features(input_ids=torch.from_numpy(tokens))
    wanted = made.pooler_output.numpy()
    with load(tmp_path / "siglip.kvc") as program:
        found = program.embed(tokens)
        (width,) = program.methods["embed"].graph.values[0].type.dims[1:]
    assert width == 16
    assert np.abs(found - wanted).max() < TOLERANCE * wanted.std()


@pytest.mark.parametrize(
    "name", ["bert", pytest.param("deberta-v2", marks=RARELY), "clip"]
)
@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8", "xnnpack_q8"])
def test_an_encoder_runs_natively_whole(name, recipe):
    bundle = export_hf(build(name), recipe=recipe)
    assert all(method.left == {} for method in describe_methods(bundle.program))


@pytest.mark.parametrize(
    "setting", [{"slack": 2}, {"encoder_length": 5}, {"dtype": "int8"}, {"window": 4}]
)
def test_settings_of_caches_are_refused(setting):
    with pytest.raises(BadModelSetting, match="has no cache"):
        export_hf(build("bert"), cache=CacheConfig(**setting))


def test_arguments_of_prefill_are_refused():
    with pytest.raises(BadModelSetting, match="has no cache"):
        export_hf(build("bert"), all_logits=True)


def test_a_text_longer_than_the_model_allows_is_refused():
    with pytest.raises(BadModelSetting, match="at most 64"):
        export_hf(build("roberta"), cache=CacheConfig(65))
