"""Names of modules."""

import torch
from hf_models import MODELS, build
from transformers import AutoConfig, AutoModelForImageTextToText

from kvc.compiler.hugging_face.reading.architectures import code_of, name_of

FUNCTIONS = "transformers.models.lfm2.modeling_lfm2"


def test_a_class_has_the_name_of_its_architecture():
    attention = build("gptj", shallow=True).transformer.h[0].attn
    assert name_of(attention) == "gptj.GPTJAttention"


def test_a_class_of_another_package_is_not_mistaken():
    class GPTJAttention(torch.nn.Module):
        pass

    assert name_of(GPTJAttention()) == ""


def test_the_code_of_parts_from_another_architecture_is_found():
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"model_type": "lfm2", **MODELS["lfm2"].settings}
    parts = {"text_config": text, "vision_config": vision}
    config = AutoConfig.for_model("lfm2_vl", projector_hidden_size=32, **parts)
    found = [
        one.__name__ for one in code_of(AutoModelForImageTextToText.from_config(config))
    ]
    assert {"transformers.models.lfm2_vl.modeling_lfm2_vl", FUNCTIONS} <= {*found}
