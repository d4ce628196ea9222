"""Which class of transformers a configuration becomes."""

from transformers import AutoConfig

from kvc.compiler.hugging_face.reading.tasks import class_of, config_of, maker_of


def class_and_config(kind: str, named: str | None) -> tuple[str, str]:
    """Return the name of the class that is made, and the type of its configuration."""
    config = AutoConfig.for_model(kind)
    config.architectures = None if named is None else [named]
    maker = maker_of("generate", config)
    assert maker is not None
    made = class_of(maker, config)
    return made.__name__, config_of(made, config).model_type


def test_a_model_that_reads_pictures_is_made_where_its_class_is_named():
    named = "Llama4ForConditionalGeneration"
    assert class_and_config("llama4", named) == (named, "llama4")


def test_a_class_of_the_text_alone_gets_the_configuration_of_the_text():
    assert class_and_config("llama4", None) == ("Llama4ForCausalLM", "llama4_text")


def test_a_model_of_one_kind_gets_its_own_configuration():
    assert class_and_config("llama", None) == ("LlamaForCausalLM", "llama")
