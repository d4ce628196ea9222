"""Every architecture: a tiny random model, its bundle, and the same logits from both.

Prefills of several lengths and in chunks, 40 decode steps that pass every window, and
a control: one row of one layer's cache is made wrong, and logits must show it.
"""

from pathlib import Path

import pytest
from hf_models import NAMED, OTHERS, REFUSED, VARIANTS, build
from hf_parity import CAPACITY, NOTICED, TOLERANCE, compare

from kvc.compiler import CacheConfig, export_hf
from kvc.schema.errors import CompileError


def check(name: str, folder: Path, **settings: object) -> None:
    parity = compare(name, folder, **settings)
    assert parity.prefill < TOLERANCE
    assert parity.decode < TOLERANCE
    assert parity.control > NOTICED


@pytest.mark.parametrize("name", NAMED)
def test_prefill_and_decode_equal_the_model_without_a_cache(name, tmp_path):
    check(name, tmp_path, shallow=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*NAMED, *VARIANTS, *OTHERS])
def test_a_prefill_of_every_length_equals_the_model(name, tmp_path):
    check(name, tmp_path, lengths=range(1, 25))


# Of the quantized recipes only a bound: int8 and int4 change logits themselves.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("recipe", "bound"), [("bf16", 0.5), ("xnnpack_q8", 1.0)])
def test_recipes_stay_near_the_model(name, recipe, bound, tmp_path):
    parity = compare(name, tmp_path, recipe=recipe)
    assert max(parity.prefill, parity.decode) < bound


REASONS = {
    "deepseek_v2": "keys that it has not just put into its cache",
    "deepseek_v3": "keys that it has not just put into its cache",
    "diffllama": "keys that it has not just put into its cache",
    "falcon_h1": "layers of the kind hybrid",
    "granitemoehybrid": "layers of the kind mamba",
    "lfm2": "layers of the kind conv",
    "llama4_text": "mask asks for more than positions",
    "mamba": "no keys and values",
    "minimax": "layers of the kind linear_attention",
    "openai-gpt": "code of its own",
    "phi3, longrope, long texts": r"longer than 32 tokens.*max_length=32",
    "phimoe, longrope": "cannot be run",
    "qwen3_next": "layers of the kind linear_attention",
    "recurrent_gemma": "recurrent|conv1d_state",
    "rwkv": "code of its own",
    "xlnet": "code of its own",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_why(name):
    with pytest.raises(CompileError, match=REASONS[name]):
        export_hf(build(name), cache=CacheConfig(CAPACITY))
