"""What stands for the attention code of older architectures."""

import pytest
import torch
from hf_models import build
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.mpt import modeling_mpt as mpt

from kvc.compiler.hugging_face.attention import own_attention
from kvc.compiler.hugging_face.attention.own_attention import adapted, alibi_slopes

OWN = [
    "bloom",
    "codegen",
    "falcon",
    "gpt_neo",
    "gpt_neox_japanese",
    "gptj",
    "mpt",
    "xglm",
]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 25, 32, 71])
def test_slopes_are_those_of_transformers(heads):
    ours = torch.tensor(alibi_slopes(heads))
    theirs = bloom._get_alibi_slopes(heads, torch.device("cpu"))
    torch.testing.assert_close(ours, theirs)
    bias = mpt.build_mpt_alibi_tensor(heads, 3)
    ours = torch.tensor(own_attention._mpt_slopes(heads))
    torch.testing.assert_close(-ours, bias[:, 0, 1])


@pytest.mark.parametrize("name", OWN)
def test_instances_change_and_change_back(name):
    model = build(name)
    before = {id(m): dict(vars(m)) for m in model.modules()}
    with adapted(model):
        changed = [m for m in model.modules() if dict(vars(m)) != before[id(m)]]
        assert len(changed) >= 2
    assert all(dict(vars(m)) == before[id(m)] for m in model.modules())


def test_a_model_with_the_interface_is_left_alone():
    assert not own_attention.has_own_attention(build("llama"))
