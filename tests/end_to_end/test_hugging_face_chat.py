"""A folder as transformers saves it: compiled, talked with, and measured."""

import json
import math

import pytest
import torch
from click.testing import CliRunner
from small_tokenizers import byte_level
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kvc.tools.cli import main

TEMPLATE = """\
{{ bos_token }}{% for message in messages %}
{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}assistant:{% endif %}"""
TEXT = "Once upon a time there was a small compiler; naïve, 100 €. " * 2


def save_folder(folder, vocabulary):
    """Save a tiny Llama whose choices are far from even, and its tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<|begin|>", eos_token="<|end|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def kvc(*arguments, **options):
    return CliRunner().invoke(main, [str(a) for a in arguments], **options)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    count = byte_level().get_vocab_size()
    model, tokenizer = save_folder(folder / "model", count + 5)
    path = folder / "llama.kvc"
    done = kvc(
        "compile",
        folder / "model",
        "--recipe",
        "fp32",
        "--all-logits",
        "-q",
        "-o",
        path,
    )
    assert done.exit_code == 0, done.output
    return path, model, tokenizer


def test_an_answer_is_what_transformers_generates(compiled):
    path, model, tokenizer = compiled
    said, messages = ["Hello, what is a cache?", "And 日本語?"], []
    done = kvc("chat", path, "-n", 12, input="\n".join(said) + "\n")
    assert done.exit_code == 0, done.output
    expected = ""
    for text in said:
        messages.append({"role": "user", "content": text})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt"
        )
        with torch.no_grad():
            made = model.generate(**prompt, max_new_tokens=12, do_sample=False)
        answer = tokenizer.decode(
            made[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True
        )
        messages.append({"role": "assistant", "content": answer})
        expected += answer + "\n"
    assert done.stdout == expected


def test_bits_are_those_of_transformers(compiled, tmp_path):
    path, model, tokenizer = compiled
    (tmp_path / "text.txt").write_text(TEXT)
    done = kvc("eval", path, tmp_path / "text.txt", "--json")
    assert done.exit_code == 0, done.output
    (one,) = json.loads(done.stdout)["bundles"]
    tokens = tokenizer(TEXT, return_tensors="pt").input_ids
    assert tokens[0, 0] == tokenizer.bos_token_id
    with torch.no_grad():
        logits = model(tokens).logits[0, :-1].double()
    nats = functional.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
    assert one["tokens"] == tokens.shape[1] - 1
    assert one["scored_nbytes"] == len(TEXT.encode())
    expected = nats / math.log(2) / len(TEXT.encode())
    assert one["bits_per_byte"] == pytest.approx(expected, rel=1e-4)
    assert one["method"] == "prefill_all"


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    save_folder(tmp_path / "model", byte_level().get_vocab_size() - 1)
    done = kvc(
        "compile",
        tmp_path / "model",
        "--recipe",
        "fp32",
        "-q",
        "-o",
        tmp_path / "llama.kvc",
    )
    assert done.exit_code == 1
    assert "does not fit the model: it has tokens up to" in done.stderr
    assert not (tmp_path / "llama.kvc").exists()
