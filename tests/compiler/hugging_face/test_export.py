import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from daily import RARELY
from hf_folders import eager, random_tokens, tiny_llama

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.replacing import using_kvc
from kvc.runtime import load
from kvc.schema.errors import BadModelSetting, CompileError, RecipeError, UnknownRecipe

# float32 sums in another order; logits are up to 10.
ATOL = 2e-5


@pytest.fixture(scope="module")
def llama():
    return tiny_llama(num_hidden_layers=1)


@contextmanager
def exported(llama, folder, batch, **options):
    cache = CacheConfig(max_length=64, batch=batch)
    bundle = export_hf(llama, cache=cache, prefill_chunk=16, **options)
    bundle.save(folder / "llama.kvc")
    with load(folder / "llama.kvc") as program:
        yield program


@pytest.fixture(scope="module")
def program(llama, tmp_path_factory):
    with exported(llama, tmp_path_factory.mktemp("llama"), batch=2) as program:
        yield program


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, atol=ATOL, rtol=0)


@RARELY
def test_prefill_and_decode_agree_with_the_model_without_a_cache(llama, program):
    tokens = random_tokens(20)
    expected = eager(llama, tokens)
    with program.session(capacity=24) as chat:
        assert_close(chat.prefill(tokens[:, :7]), expected[:, 6])
        assert_close(chat.prefill(tokens[:, 7:8]), expected[:, 7])
        for place in range(8, 20):
            assert_close(chat.decode(tokens[:, [place]]), expected[:, place])
        assert (chat.position.tolist(), chat.capacity) == ([20], 24)


@RARELY
def test_a_session_rewinds_and_is_restored(llama, program, tmp_path):
    tokens = random_tokens(12)
    expected = eager(llama, tokens)
    with program.session(capacity=16) as chat:
        chat.prefill(tokens[:, :10])
        chat.save(tmp_path / "chat.session")
        chat.decode(np.array([[5]]))
        chat.rewind(3)
        for place in (8, 9, 10):
            got = chat.decode(tokens[:, [place]])
        assert_close(got, expected[:, 10])
    with program.restore(tmp_path / "chat.session") as again:
        assert_close(again.decode(tokens[:, [10]]), expected[:, 10])


KINDS = {
    "prefill_4": {"prefill_sizes": (4,)},
    "prefill_all": {"all_logits": True},
    "prefill_embeds": {"inputs_embeds": True},
}


def test_prefills_of_all_kinds_write_one_cache(llama, tmp_path):
    tokens, start = random_tokens(17), 3
    expected = eager(llama, tokens)
    with torch.no_grad():
        embeds = llama.get_input_embeddings()(torch.from_numpy(tokens)).numpy()
    options = {key: value for kind in KINDS.values() for key, value in kind.items()}
    with (
        exported(llama, tmp_path, batch=1, **options) as program,
        program.session() as chat,
    ):
        assert_close(chat.prefill(tokens[:, :start]), expected[:, start - 1])
        for kind in KINDS:
            given = embeds if kind == "prefill_embeds" else tokens
            got = chat.call(kind, given[:, start : start + 4])
            wanted = expected[:, start : start + 4]
            assert_close(got, wanted if kind == "prefill_all" else wanted[:, -1])
            start += 4
        assert_close(chat.decode(tokens[:, [start]]), expected[:, start])


@RARELY
def test_rows_of_a_batch_are_apart(llama, program):
    tokens = np.concatenate([random_tokens(9), random_tokens(9, seed=1)])
    expected = eager(llama, tokens)
    with program.session(capacity=16, batch=2) as chat:
        assert_close(chat.prefill(tokens[:, :8]), expected[:, 7])
        assert_close(chat.decode(tokens[:, 8:]), expected[:, 8])


def test_caches_have_the_dtype_that_is_asked_for(llama, tmp_path):
    cache = CacheConfig(max_length=32, dtype="int8")
    export_hf(llama, cache=cache).save(tmp_path / "int8.kvc")
    tokens = random_tokens(9)
    with load(tmp_path / "int8.kvc") as program, program.session() as chat:
        dtypes = {name: s.type.dtype.name for name, s in program.states.items()}
        assert dtypes["kvc_cache.0.keys"] == dtypes["kvc_cache.0.values"] == "INT8"
        chat.prefill(tokens[:, :8])
        error = np.abs(chat.decode(tokens[:, 8:]) - eager(llama, tokens)[:, 8]).max()
    assert ATOL < error < 0.3  # of logits up to 10; rows have 1/254 of their largest


def test_an_unknown_dtype_of_caches_is_refused(llama):
    with pytest.raises(RecipeError, match="int4"):
        export_hf(llama, cache=CacheConfig(dtype="int4"))


def test_an_unknown_recipe_is_refused(llama):
    with pytest.raises(UnknownRecipe):
        export_hf(llama, recipe="no recipe")


def test_the_model_is_left_as_it_was(llama):
    before = llama.config._attn_implementation
    llama.train()
    try:
        with pytest.raises(ZeroDivisionError), using_kvc(llama):
            raise ZeroDivisionError
        assert llama.training
        assert llama.config._attn_implementation == before != "kvc"
        assert not any("kvc" in name for name, _ in llama.named_buffers())
    finally:
        llama.eval()


def test_an_interrupt_leaves_the_model_as_it_was():
    model = tiny_llama(num_hidden_layers=1)
    implementation, attributes = model.config._attn_implementation, set(vars(model))
    tensors = {name: id(tensor) for name, tensor in model.named_parameters()}

    def interrupt(*_):
        if torch.compiler.is_exporting():  # it is run before, to see what it caches
            signal.raise_signal(signal.SIGINT)

    handle = model.model.norm.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_hf(model)
    handle.remove()
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == tensors
    assert model.config._attn_implementation == implementation
    assert set(vars(model)) == attributes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache": CacheConfig(max_length=129)}, "at most 128, the model's own limit"),
        ({"cache": "int8"}, "cache: expected a CacheConfig, found 'int8'"),
        ({"prefill_chunk": 0}, "prefill_chunk: expected 1 or more, found 0"),
        ({"prefill_sizes": (4, 4)}, "prefill_sizes: expected different numbers"),
        ({"prefill_sizes": (129,)}, "prefill_sizes: expected at most 128"),
    ],
)
def test_sizes_that_cannot_be_are_refused(llama, settings, message):
    with pytest.raises(BadModelSetting, match=message):
        export_hf(llama, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "max_length: expected 16 or more, found 0"),
        ({"max_length": -64}, "max_length: expected 16 or more, found -64"),
        ({"max_length": 64.0}, "max_length: expected a whole number, found 64.0"),
        ({"max_length": True}, "max_length: expected a whole number, found True"),
        ({"max_length": 2**40}, "max_length: expected at most 2147483647"),
        ({"batch": 0}, "batch: expected 1 or more, found 0"),
        ({"batch": 2**40}, "batch: expected at most 2147483647"),
        ({"slack": -1}, "slack: expected 0 or more, found -1"),
        ({"window": 0}, "window: expected 1 or more, found 0"),
        ({"window": 2**40}, "window: expected at most 2147483647"),
        ({"window": 4, "keep": -1}, "keep: expected 0 or more, found -1"),
        ({"window": 4, "keep": True}, "keep: expected a whole number, found True"),
        ({"keep": 4}, "keep: expected 0 without a window, .*--window N.*, found 4"),
    ],
)
def test_a_cache_config_refuses_what_no_cache_can_be(settings, message):
    with pytest.raises(BadModelSetting, match=f"CacheConfig, {message}"):
        CacheConfig(**settings)


def test_what_is_no_model_is_refused():
    with pytest.raises(CompileError, match=r"expected a model of .*, found Linear"):
        export_hf(torch.nn.Linear(2, 2))
