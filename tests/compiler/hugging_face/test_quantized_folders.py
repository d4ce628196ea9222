"""Folders whose weights other tools have quantized."""

import numpy as np
import pytest
from hf_folders import eager, random_tokens
from quantized_folders import FORMATS, quantized_folder

from kvc.compiler.hugging_face import export_hf
from kvc.runtime import load


def logits(bundle, tokens):
    session = load(bundle).session()
    return np.asarray(session.prefill(tokens))


@pytest.mark.parametrize("name", FORMATS)
def test_floats_equal_the_model_that_the_folder_stands_for(tmp_path, name):
    model = quantized_folder(tmp_path, name)
    tokens = random_tokens(20)
    bundle = export_hf(tmp_path, recipe="cpu_fp32")
    bundle.save(tmp_path / "m.kvc")
    found = logits(tmp_path / "m.kvc", tokens)
    expected = eager(model, tokens)[:, -1]
    np.testing.assert_allclose(
        found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
    )
