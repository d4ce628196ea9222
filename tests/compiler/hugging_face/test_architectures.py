"""Names of modules."""

import torch
from hf_models import build

from kvc.compiler.hugging_face.architectures import name_of


def test_a_class_has_the_name_of_its_architecture():
    attention = build("gptj", shallow=True).transformer.h[0].attn
    assert name_of(attention) == "gptj.GPTJAttention"


def test_a_class_of_another_package_is_not_mistaken():
    class GPTJAttention(torch.nn.Module):
        pass

    assert name_of(GPTJAttention()) == ""
