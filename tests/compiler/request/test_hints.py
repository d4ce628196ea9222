"""A model of transformers that is given as it is: the error names its front end."""

import pytest
import torch
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.compiler.request.hints import with_front_end
from kvc.schema.errors import CapacityFixed, CaptureError

PRETRAINED = type("PreTrainedModel", (nn.Module,), {"__module__": "transformers.base"})


class DynamicCache:
    pass


class Decoder(PRETRAINED):
    def forward(self, tokens, past=None):
        return {"logits": tokens * 2.0, "past": DynamicCache()}


class Plain(nn.Module):
    forward = Decoder.forward


def refusal(model, *args):
    with pytest.raises(CaptureError) as caught:
        compile_program(model, [Method("forward", args)])
    return str(caught.value)


def test_a_result_that_is_a_cache_points_to_the_front_end():
    message = refusal(Decoder(), torch.ones(1, 3))
    assert "its result.past is of type tests.compiler.request.test_hints.Dyn" in message
    assert "Instead: models of transformers are compiled" in message
    assert "kvc.compiler.export_hf(folder)" in message


def test_an_example_that_is_a_cache_points_to_the_front_end():
    message = refusal(Decoder(), torch.ones(1, 3), DynamicCache())
    assert "the argument past is of type" in message
    assert "kvc.compiler.export_hf(folder)" in message


def test_other_models_are_not_told_of_it():
    assert "export_hf" not in refusal(Plain(), torch.ones(1, 3))


def test_the_kind_of_the_error_and_its_facts_stay():
    facts = {"method": "f", "place": "", "reason": "r", "buffer": "k"}
    error = CapacityFixed(**facts, dim="n", axis=1)
    changed = with_front_end(Decoder(), error)
    assert type(changed) is CapacityFixed
    assert changed.facts["buffer"] == "k"
    assert changed.facts["reason"].startswith("r. Instead: ")
