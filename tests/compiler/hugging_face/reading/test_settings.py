"""How many positions a model has."""

from transformers import AutoConfig

from kvc.compiler.hugging_face.reading.settings import CacheConfig, encoder_length


def test_an_encoder_that_is_a_model_of_its_own_has_its_own_limit():
    encoder = {"model_type": "bert", "max_position_embeddings": 32}
    decoder = {"model_type": "gpt2", "n_positions": 64}
    config = AutoConfig.for_model("encoder-decoder", encoder=encoder, decoder=decoder)
    assert encoder_length(CacheConfig(), config) == 32


def test_an_encoder_within_a_model_has_the_models_limit():
    config = AutoConfig.for_model("bart", max_position_embeddings=48)
    assert encoder_length(CacheConfig(), config) == 48
