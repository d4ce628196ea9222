import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import load

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    with torch.no_grad():  # initial weights are so small that errors hide
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    return model


@pytest.fixture(scope="module")
def bundle(llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("llama") / "llama.kvc"
    export_hf(llama, cache=CacheConfig(max_length=64)).save(path)
    return path


def eager(model, tokens):
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def test_prefill_and_decode_agree_with_the_model_without_a_cache(llama, bundle):
    tokens = np.random.default_rng(0).integers(0, 64, (1, 20))
    expected = eager(llama, tokens)
    with load(bundle) as program, program.session(capacity=24) as chat:
        got = [chat.prefill(tokens[:, :7]), chat.prefill(tokens[:, 7:8])]
        got += [chat.decode(tokens[:, i : i + 1]) for i in range(8, 20)]
        chat.rewind(2)
        got += [chat.decode(tokens[:, i : i + 1]) for i in (18, 19)]
    places = [6, 7, *range(8, 20), 18, 19]
    for place, logits in zip(places, got, strict=True):
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-5)
