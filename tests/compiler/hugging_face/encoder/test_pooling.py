"""How folders say that states become an embedding, and what that computes."""

import numpy as np
import pytest
import torch
from encoder_models import say_pooling, write

from kvc.compiler.hugging_face.encoder.pooling import MEAN, read_pooling
from kvc.schema.errors import BadModelFolder, UnsupportedModel

LENGTHS = (7, 1, 4)
STATES = np.random.default_rng(0).normal(size=(3, 7, 5)).astype(np.float32) - 1


@pytest.mark.parametrize(
    ("modes", "pool"),
    [
        ({"pooling_mode_cls_token": True}, lambda s: s[0]),
        ({"pooling_mode_max_tokens": True}, lambda s: s.max(0)),
        ({"pooling_mode_mean_tokens": True}, lambda s: s.mean(0)),
        (
            {"pooling_mode_mean_sqrt_len_tokens": True},
            lambda s: s.sum(0) / np.sqrt(len(s)),
        ),
        ({"pooling_mode_lasttoken": True}, lambda s: s[-1]),
        ({"pooling_mode": "cls"}, lambda s: s[0]),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            lambda s: np.concatenate([s[0], s.mean(0)]),
        ),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_padding_has_no_part_in_an_embedding(tmp_path, modes, pool, normalize):
    say_pooling(tmp_path, normalize, **modes)
    pooling = read_pooling(tmp_path)
    assert pooling.stated
    found = pooling.pool(torch.from_numpy(STATES), torch.tensor(LENGTHS)).numpy()
    wanted = np.stack([pool(s[:n]) for s, n in zip(STATES, LENGTHS, strict=True)])
    if normalize:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.abs(found - wanted).max() < 1e-6
    whole = pooling.pool(torch.from_numpy(STATES), torch.tensor([7, 7, 7])).numpy()
    sees_ends = set(modes) != {"pooling_mode_cls_token"} and "pooling_mode" not in modes
    assert np.array_equal(whole, found) != sees_ends


def test_a_folder_that_says_nothing_takes_the_mean(tmp_path):
    assert read_pooling(tmp_path) is MEAN
    assert (MEAN.ways, MEAN.normalized, MEAN.stated) == (("mean",), False, False)


@pytest.mark.parametrize(
    ("name", "content", "error", "text"),
    [
        ("modules.json", {}, BadModelFolder, "no list"),
        ("modules.json", [{"type": "x.Dense"}], UnsupportedModel, "Dense"),
        ("modules.json", [{"type": "x.Transformer"}], BadModelFolder, "no Pooling"),
        ("1_Pooling/config.json", {}, BadModelFolder, "no pooling_mode"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_weightedmean_tokens": True},
            UnsupportedModel,
            "weightedmean",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "include_prompt": False},
            UnsupportedModel,
            "prompt",
        ),
        ("sentence_bert_config.json", {"max_seq_length": 0}, BadModelFolder, "max_seq"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": 3}},
            BadModelFolder,
            "prompts",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {}, "default_prompt_name": "query"},
            BadModelFolder,
            "default",
        ),
    ],
)
def test_a_folder_that_pools_otherwise_is_refused(tmp_path, name, content, error, text):
    say_pooling(tmp_path, pooling_mode_cls_token=True)
    write(tmp_path, name, content)
    with pytest.raises(error, match=text):
        read_pooling(tmp_path)


def test_a_pooling_that_is_not_there_is_refused(tmp_path):
    say_pooling(tmp_path, pooling_mode_cls_token=True)
    (tmp_path / "1_Pooling/config.json").unlink()
    with pytest.raises(BadModelFolder, match="not there"):
        read_pooling(tmp_path)
