"""Folders whose weights other tools have quantized, and what is made of them."""

from itertools import product

import numpy as np
import pytest
from hf_folders import eager, random_tokens
from quantized_folders import quantized_folder

from kvc.compiler.hugging_face import export_hf
from kvc.runtime import load


def rarely(case):
    """Return a case that only a run of every case tries."""
    given = case if isinstance(case, tuple) else (case,)
    return pytest.param(*given, marks=pytest.mark.exhaustive)


def last_logits(folder, recipe, tokens):
    path = folder / f"{recipe}.kvc"
    bundle = export_hf(folder, recipe=recipe)
    bundle.save(path)
    return bundle, np.asarray(load(path).session().prefill(tokens))


@pytest.mark.parametrize("name", ["gptq_zeros", *map(rarely, ["mlx_3", "nf4"])])
def test_floats_equal_the_model_that_the_folder_stands_for(tmp_path, name):
    model, tokens = quantized_folder(tmp_path, name), random_tokens(20)
    _, found = last_logits(tmp_path, "cpu_fp32", tokens)
    expected = eager(model, tokens)[:, -1]
    most = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * most)


FORMS = {
    "gptq": {"GPTQ as they are": 7},
    "awq": {"AWQ as they are": 7},
    "mlx_4": {"MLX as they are": 8},
    "compressed_8": {"compressed-tensors as they are": 7},
    "llm_int8": {"int8 as they are": 7},
    "nf4": {"bitsandbytes quantized again to int8 in blocks of 32": 7},
}
CASES = [("cpu_q8", "gptq"), ("cpu_q4", "awq"), ("cpu_q8", "mlx_4")]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        case if case in CASES else rarely(case)
        for case in product(["cpu_q8", "cpu_q4"], FORMS)
    ],
)
def test_quantized_matrices_are_used_as_they_are(tmp_path, recipe, name):
    model, tokens = quantized_folder(tmp_path, name), random_tokens(20)
    bundle, found = last_logits(tmp_path, recipe, tokens)
    assert FORMS[name].items() <= bundle.stored_forms.items()
    if recipe == "cpu_q8":  # by cpu_q4 the output layer, a float, becomes int4
        expected = eager(model, tokens)[:, -1]
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error < 0.03  # activations are int8


def test_other_recipes_quantize_again(tmp_path):
    quantized_folder(tmp_path, "gptq")
    bundle = export_hf(tmp_path, recipe="xnnpack_q8")
    assert bundle.stored_forms == {"GPTQ quantized again as the recipe says": 7}
