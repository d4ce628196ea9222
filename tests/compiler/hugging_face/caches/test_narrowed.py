"""Which window a cache has where the caller asks for one, and what has none."""

import pytest
from daily import RARELY, only
from hf_models import WINDOW, build
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.bart import BartConfig, BartForConditionalGeneration

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face import FirstPositionsFar
from kvc.compiler.hugging_face.caches.narrowed import narrowed
from kvc.compiler.hugging_face.caches.positions import has_position_table
from kvc.compiler.hugging_face.replacing import using_kvc
from kvc.schema.errors import BadModelSetting, UnsupportedModel
from kvc.schema.model import StateKind
from kvc.schema.rings import Window

far = pytest.mark.filterwarnings("ignore::kvc.compiler.hugging_face.FirstPositionsFar")


def exported(name, chunk=8, **given):
    model = build(name, shallow=True)
    settings = {"window": 12, "keep": 3} | given
    return export_hf(model, cache=CacheConfig(**settings), prefill_chunk=chunk).program


def of(program):
    """Return the kind, window and slots of the first layer's keys; the limit."""
    (keys, *_) = (s for s in program.states if s.name.endswith(".keys"))
    return keys.kind, keys.window, keys.type.dims[2], program.position.capacity


def test_a_narrower_window_of_the_model_stays_as_it_is():
    asked = Window(12, 3)
    assert narrowed(None, asked) == narrowed(Window(13), asked) == asked
    assert narrowed(Window(12), asked) == Window(12)
    assert narrowed(Window(13), None) == Window(13)
    assert narrowed(None, None) is None


@far
@RARELY
def test_a_wider_window_of_the_model_becomes_the_asked_one():
    narrow = exported("mistral", window=WINDOW - 3, keep=2)
    assert of(narrow) == (StateKind.RING, Window(WINDOW - 3, 2), WINDOW - 1 + 7, None)
    own = exported("mistral", window=WINDOW, keep=2)
    assert of(own) == (StateKind.RING, Window(WINDOW), WINDOW + 7, None)


def test_a_text_that_is_seen_whole_needs_no_ring():
    kind, window, _, limit = of(exported("llama", window=60, keep=4, max_length=64))
    assert (kind, window, str(limit)) == (StateKind.LINEAR, None, "capacity")


@RARELY
def test_a_ring_may_be_longer_than_the_text_if_it_keeps_first_positions():
    program = exported("llama", window=60, keep=3, max_length=64)
    assert of(program) == (StateKind.RING, Window(60, 3), 70, 64)
    program = exported("llama", window=60, keep=0, max_length=64)
    assert of(program)[:2] == (StateKind.LINEAR, None)


@far
@RARELY
def test_the_length_that_is_asked_for_may_be_any():
    assert of(exported("llama", max_length=1000))[3] == 1000
    assert of(exported("llama", keep=0))[1:] == (Window(12), 19, None)


@RARELY
def test_a_decoder_with_an_encoder_keeps_its_own_tokens_in_a_ring():
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 97}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(**sizes, **heads, max_position_embeddings=64)
    cache = CacheConfig(window=12, keep=3)
    model = BartForConditionalGeneration(config).eval()
    program = export_hf(model, cache=cache, prefill_chunk=8).program
    found = {state.name: (state.kind, state.window) for state in program.states}
    assert found["kvc_cache.0.keys"] == (StateKind.RING, Window(12, 3))
    assert found["kvc_cross.0.keys"] == (StateKind.LINEAR, None)
    assert program.position.capacity == 64


@far
@only(name=["deepseek_v3", "mamba"])
@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("deepseek_v3", UnsupportedModel, "its layers cache latents, .* --window"),
        ("llama4_text", UnsupportedModel, "its attention has chunks of the text, and"),
        ("mamba", BadModelSetting, "window: expected nothing, as no layer of Mamba"),
    ],
)
def test_models_that_cannot_have_a_window_are_refused(name, error, reason):
    with pytest.raises(error, match=reason):
        exported(name)


@RARELY
def test_a_bias_of_positions_is_refused():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=97, **sizes)).eval()
    with pytest.raises(UnsupportedModel, match="has a bias over positions, and a wind"):
        export_hf(model, cache=CacheConfig(max_length=64, window=12, keep=3))


@pytest.mark.parametrize("window", [126, 2**20])
def test_a_window_beyond_the_model_is_refused(window):
    words = f"at most 128 with those kept, the model's own limit, found {window}"
    with pytest.raises(BadModelSetting, match=words):
        exported("llama", window=window)


def test_first_positions_far_behind_are_told():
    with pytest.warns(FirstPositionsFar, match=r"up to 128 tokens; .*--max-length 128"):
        exported("llama")
    exported("llama", max_length=128)
    exported("bloom")
    exported("llama", keep=0)


TABLES = {
    "gpt2": True, "gptj": True, "opt": True, "xglm": True, "biogpt": True,
    "codegen": True, "ctrl": True, "llama": False, "bloom": False, "mpt": False,
    "falcon": False, "gemma3_text": False, "lfm2": False,
}  # fmt: skip


@only(name=["gpt2", "gptj", "xglm", "llama", "bloom", "lfm2"])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_positions_is_found(name):
    model = build(name, shallow=True)
    with using_kvc(model):
        assert has_position_table(model) == TABLES[name]
