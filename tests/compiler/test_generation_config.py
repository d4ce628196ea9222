import pytest
import tiny_decoder

from kvc.compiler import compile_program
from kvc.schema.errors import CompileError


def refusal(config):
    spec = tiny_decoder.untold()
    metadata = {"generation_config": config}
    with pytest.raises(CompileError) as caught:
        compile_program(spec.model, spec.methods, metadata=metadata)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"temperature": -1}, "temperature: expected a number, 0 or more, got -1"),
        ({"top_k": "few"}, "top_k: expected a whole number, 0 or more, got 'few'"),
        ({"eos_token_id": [1, None]}, "eos_token_id: expected tokens"),
        ({"max_tokens": 1, "max_new_tokens": 2}, "max_tokens: expected no value"),
    ],
)
def test_an_impossible_setting_is_found_when_a_bundle_is_made(config, message):
    assert refusal(config).startswith("generation_config, ")
    assert message in refusal(config)


def test_settings_that_are_no_mapping_are_refused():
    text = refusal(["temperature"])
    assert text == (
        "metadata generation_config: expected a mapping, found a value of type list"
    )
