"""What Python and torch refuse is told as what a model's code did."""

import pytest
import torch
from hf_models import MODELS, build
from transformers import AutoConfig, AutoModelForImageTextToText

from kvc.compiler.hugging_face.reading.model_lines import code_of, name_of, words_of


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (lambda: [][3], "it asks for an element that is not there"),
        (lambda: [].pop(), "it asks for an element that is not there"),
        (lambda: torch.nn.ModuleList()[0], "it asks for an element that is not there"),
        (lambda: torch.zeros(2)[2], "it asks for element 2 of 2 along dimension 0"),
        (lambda: torch.zeros(2).numpy()[2], "it asks for element 2 of 2 along"),
        (lambda: torch.zeros(2).sum(5), "IndexError: Dimension out of range (expected"),
        (lambda: torch.zeros(2)[0, 0], "IndexError: too many indices for tensor"),
        (lambda: torch.zeros(2)[torch.zeros(1)], "IndexError: tensors used as ind"),
        (lambda: {}["a"], "it asks for 'a', which is not there"),
        (lambda: None.shape, "it asks for shape of None, so something that it needs"),
        (lambda: [].shape, "it asks for shape, which no list has"),
        (lambda: 1 + None, "it computes with None, so something that it needs"),
        (lambda: 1 + "a", "TypeError: unsupported operand"),
        (lambda: int("x"), "ValueError: invalid literal"),
    ],
)
def test_what_code_did_is_told(failing, said):
    with pytest.raises(Exception) as caught:  # noqa: PT011  of any kind
        failing()
    assert words_of(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (IndexError("layer 7 has no cache"), "IndexError: layer 7 has no cache"),
        (KeyError("no rope of kind x"), "KeyError: 'no rope of kind x'"),
        (AttributeError("x was removed", name="x"), "AttributeError: x was removed"),
    ],
)
def test_what_a_models_own_code_says_is_kept(error, said):
    assert words_of(error) == said


def test_what_raises_without_a_name_says_so_itself():
    assert words_of(AttributeError("no cache")) == "AttributeError: no cache"
    assert words_of(KeyError()) == "KeyError"


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
