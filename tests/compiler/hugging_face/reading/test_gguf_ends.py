"""The tokens of a GGUF file that end a text."""

import pytest

from kvc.compiler.hugging_face.reading.gguf_ends import end_tokens


def file(*spelled, **named):
    tokens = {"tokenizer.ggml.tokens": ["a", *spelled]}
    return tokens | {f"tokenizer.ggml.{k}_token_id": v for k, v in named.items()}


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [
        ({}, []),
        (file("b", eos=1), [1]),
        ({"tokenizer.ggml.eos_token_id": 7}, [7]),  # without a vocabulary
        (file("<|endoftext|>", "<|im_start|>", "<|im_end|>", eos=3), [3, 1]),
        (file("x", "y", "z", eos=2, eot=1, eom=3, bos=0), [2, 1, 3]),
        (file("<|end|>", "<|call|>", eos=2), [2, 1]),
        (file("<|end|>", "<|call|>", "<|return|>", eos=2), [2, 3]),
        (file("</s>", "<|tool_response>", "<eos>", eos=3), [3, 2]),
        (file("<fim_pad>", "<|fim_pad|>", "<|file_sep|>", eos=0), [0, 2, 3]),
        (file("b", eos=1, eot=99, eom="x"), [1]),
    ],
)
def test_ends_are_those_that_are_named_and_well_known_spellings(metadata, ends):
    assert end_tokens(metadata) == ends
