"""Adapters of PEFT on bundles: equal to PEFT, row by row, and never in the way."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY, only
from hand_built import write_bundle
from hf_folders import eager, random_tokens, save_folder, tiny_llama
from hf_models import build
from numpy.testing import assert_allclose, assert_array_equal
from peft_adapters import adapted_logits, convert, save_adapter, told_by_peft
from stateful_programs import linear_program
from transformers import LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from kvc.compiler import AdapterSlots, CacheConfig, export_hf
from kvc.runtime import (
    AdapterInUse,
    BadSetting,
    NoSlots,
    NotLoaded,
    Program,
    UnknownName,
    generate,
    load,
)
from kvc.schema.adapters import RANKS, slots_of

TOKENS = random_tokens(9)
LINEAR = ["q_proj", "v_proj", "o_proj", "down_proj"]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama(tie_word_embeddings=False, attention_bias=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory, model) -> Path:
    """Return a folder with a bundle `m.kvc`, the model's folder, and two adapters."""
    home = tmp_path_factory.mktemp("adapters")
    slots = AdapterSlots(2, rank=6, gains=True, whole=("lm_head",))
    cache = CacheConfig(batch=3)
    bundle = export_hf(
        model, recipe="cpu_fp32", cache=cache, all_logits=True, adapters=slots
    )
    bundle.save(home / "m.kvc")
    save_folder(home / "model", model)
    for seed, name in enumerate(("poet", "clerk")):
        save_adapter(model, home / name, seed)
    with load(home / "m.kvc") as program:
        for name in ("poet", "clerk"):
            convert(home / name, program, home / f"{name}.kva")
    return home


@pytest.fixture
def program(home):
    with load(home / "m.kvc") as program:
        yield program


@pytest.fixture
def both(program, home) -> Program:
    """Return the program with both adapters loaded."""
    for name in ("poet", "clerk"):
        program.adapters.load(home / f"{name}.kva")
    return program


def last(logits) -> np.ndarray:
    return logits[:, -1]


@pytest.mark.parametrize(
    "settings",
    [
        # What these say, the others say too.
        pytest.param({}, marks=RARELY),
        pytest.param({"use_rslora": True, "target_modules": LINEAR}, marks=RARELY),
        {"rank_pattern": {"layers.1.self_attn.q_proj": 2, "up_proj": 6}},
        {"alpha_pattern": {"^model.layers.0.mlp.*_proj": 1.5}, "r": 3},
        pytest.param({"use_dora": True}, marks=RARELY),
        {"use_dora": True, "use_rslora": True, "target_modules": LINEAR},
        {"lora_bias": True},
        {"bias": "lora_only", "target_modules": LINEAR},
        {"modules_to_save": ["lm_head"], "target_modules": LINEAR},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_an_adapter_computes_what_peft_does(settings, model, program, home, tmp_path):
    save_adapter(model, tmp_path / "peft", seed=5, **settings)
    file = convert(tmp_path / "peft", program, tmp_path / "a.kva", home / "model")
    program.adapters.load(file)
    wanted = adapted_logits(model, tmp_path / "peft", TOKENS)
    plain = eager(model, TOKENS)
    assert np.abs(wanted - plain).max() > 0.1, "the adapter changes results"
    with program.session(adapter="a") as session:
        found = session.prefill_all(TOKENS)
        size = np.abs(wanted).max()
        assert_allclose(found, wanted, rtol=0, atol=1e-5 * size)
        if not {"bias", "lora_bias"} & settings.keys():  # PEFT does not merge those
            merged = adapted_logits(model, tmp_path / "peft", TOKENS, merged=True)
            assert_allclose(found, merged, rtol=0, atol=1e-5 * size)
        session.reset()
        for token in TOKENS[0]:
            made = session.decode(token[None, None])
        assert_allclose(made, found[:, -1], rtol=0, atol=1e-5 * size)


@only(name={"gpt2", "mixtral"})
@pytest.mark.parametrize("name", ["qwen3", "gpt2", "mixtral", "lfm2"])
def test_adapters_fit_other_architectures(name, tmp_path):
    model = build(name, shallow=True)
    slots = AdapterSlots(1, rank=4)
    rows = CacheConfig(batch=2) if name == "mixtral" else None
    bundle = export_hf(model, recipe="cpu_fp32", cache=rows, adapters=slots)
    bundle.save(tmp_path / "m.kvc")
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    targets = attention if name == "mixtral" else "all-linear"
    folder = save_adapter(model, tmp_path / "peft", target_modules=targets)
    tokens = random_tokens(7)
    wanted = adapted_logits(model, folder, tokens)
    with load(tmp_path / "m.kvc") as program:
        program.adapters.load(convert(folder, program, tmp_path / "a.kva"))
        with program.session(adapter="a") as session:
            found = session.prefill(tokens)
        with program.session() as session:
            plain = session.prefill(tokens)
    size = np.abs(wanted).max()
    assert_allclose(found, last(wanted), rtol=0, atol=2e-5 * size)
    assert_allclose(plain, last(eager(model, tokens)), rtol=0, atol=2e-5 * size)


def test_an_encoder_and_its_decoder_have_adapters(tmp_path):
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(config).eval()
    slots = AdapterSlots(2, rank=4)
    export_hf(model, recipe="cpu_fp32", adapters=slots).save(tmp_path / "m.kvc")
    names = ["q", "v", "wi", "wo"]
    for seed, name in enumerate("ab"):
        folder = tmp_path / name
        save_adapter(model, folder, seed, "SEQ_2_SEQ_LM", target_modules=names)
    start = np.zeros((1, 1), np.int64)
    wanted = adapted_logits(model, tmp_path / "a", TOKENS, decoder_input_ids=start)
    with load(tmp_path / "m.kvc") as program:
        for name in "ab":
            program.adapters.load(
                convert(tmp_path / name, program, tmp_path / f"{name}.kva")
            )
        with program.session(adapter="a") as session:
            session.encode(TOKENS)
            with pytest.raises(BadSetting, match="holds tokens"):
                session.use_adapter("b")
            found = session.decode(start)
    size = np.abs(wanted).max()
    assert_allclose(found, wanted[:, -1], rtol=0, atol=2e-5 * size)


@only(recipe={"cpu_q8"})
@pytest.mark.parametrize("recipe", ["cpu_q8", "cpu_q4"])
def test_quantized_bases_lose_no_more_with_an_adapter(recipe, tmp_path):
    model = tiny_llama(num_hidden_layers=1, tie_word_embeddings=False)
    poet = save_adapter(model, tmp_path / "poet")
    bundle = export_hf(model, recipe=recipe, adapters=AdapterSlots(1, rank=4))
    bundle.save(tmp_path / "m.kvc")
    wanted = last(adapted_logits(model, poet, TOKENS))
    with load(tmp_path / "m.kvc") as program:
        file = convert(poet, program, tmp_path / "a.kva")
        program.adapters.load(file)
        with program.session() as session:
            plain = session.prefill(TOKENS)
        with program.session(adapter="a") as session:
            found = session.prefill(TOKENS)
            session.reset()
            single = [session.decode(token[None, None]) for token in TOKENS[0]][-1]
    lost = np.abs(plain - last(eager(model, TOKENS))).max()
    assert np.abs(found - wanted).max() < 2 * lost
    assert_array_equal(single, found)


def test_a_session_without_an_adapter_runs_no_product_more(program):
    methods = program._engine.program.methods
    ops = {
        method.name: {step.op for graph in method.graphs for step in graph.instructions}
        for method in methods
    }
    assert "adapted_decode" not in program.methods
    for method in methods:
        adapts = method.adapts is not None
        assert ("kvc::adapted" in ops[method.name]) == adapts


def test_each_row_has_its_own_adapter_and_scale(both, model, home):
    tokens = np.concatenate([random_tokens(6, seed) for seed in range(3)])
    with both.session(batch=3, adapter=["poet", None, "clerk"]) as session:
        found = session.prefill(tokens)
        assert session.adapters == ("poet", None, "clerk")
    rows = [
        last(adapted_logits(model, home / "poet", tokens[:1])),
        last(eager(model, tokens[1:2])),
        last(adapted_logits(model, home / "clerk", tokens[2:])),
    ]
    assert_allclose(found, np.concatenate(rows), rtol=0, atol=2e-5)
    with both.session(batch=3, adapter="poet", scale=[1.0, 0.0, 0.5]) as session:
        scaled = session.prefill(np.repeat(tokens[:1], 3, axis=0))
    assert_array_equal(scaled[0], found[0])
    assert_allclose(scaled[1], last(eager(model, tokens[:1]))[0], rtol=0, atol=2e-5)
    assert not np.allclose(scaled[2], scaled[0], atol=1e-2)


def test_a_row_that_is_admitted_or_copied_brings_its_adapter(both):
    with both.session(adapter="poet") as one, both.session(batch=2) as many:
        wanted = one.prefill(TOKENS)
        many.admit(1, one)
        assert many.adapters == (None, "poet")
        many.copy_row(1, 0)
        many.reset_row(1)
        assert many.adapters == ("poet", "poet")
        many.rewind(np.array([1, 0]))
        found = many.prefill(np.repeat(TOKENS[:, -1:], 2, 0), np.array([1, 0]))
        assert_array_equal(found[0], wanted[0])


def test_forks_prefixes_resets_and_rewinds_keep_the_adapter(both):
    with both.session(adapter="clerk") as session:
        wanted = session.prefill(TOKENS)
        with session.fork() as fork:
            assert fork.adapters == ("clerk",)
            fork.rewind(4)
            assert_array_equal(fork.prefill(TOKENS[:, -4:]), wanted)
            fork.reset()
            assert_array_equal(fork.prefill(TOKENS), wanted)
        with session.one_row() as other:
            assert_array_equal(other.prefill(TOKENS), wanted)
    with both.prefix(TOKENS, adapter="clerk") as prefix:
        assert_array_equal(prefix.logits, wanted)
        with prefix.session() as session:
            assert session.adapters == ("clerk",)


def test_a_saved_session_goes_on_with_its_adapter_wherever_that_is_loaded(
    both, home, tmp_path
):
    with both.session(batch=2, adapter=["clerk", None], scale=[0.5, 1]) as session:
        session.prefill(np.repeat(TOKENS, 2, 0))
        wanted = session.fork().decode(np.array([[5], [6]]))
        session.save(tmp_path / "s")
    with load(home / "m.kvc") as again:
        with pytest.raises(NotLoaded, match="'clerk'"):
            again.restore(tmp_path / "s")
        again.adapters.load(home / "clerk.kva", "other name")
        with again.restore(tmp_path / "s") as session:
            assert session.adapters == ("other name", None)
            assert_array_equal(session.decode(np.array([[5], [6]])), wanted)


def test_sessions_of_other_loads_bring_adapters_that_are_loaded_here(both, home):
    with load(home / "m.kvc") as other, both.session(adapter="poet") as source:
        wanted = source.prefill(TOKENS)
        with other.session(batch=2) as target:
            with pytest.raises(NotLoaded):
                target.admit(0, source)
            assert target.adapters == (None, None)
            other.adapters.load(home / "poet.kva", "p")
            target.admit(0, source)
            assert target.adapters == ("p", None)
            target.rewind(np.array([1, 0]))
            again = target.prefill(np.repeat(TOKENS[:, -1:], 2, 0), np.array([1, 0]))
            assert_array_equal(again[0], wanted[0])


def test_a_row_changes_its_adapter_only_while_it_is_empty(both):
    with both.session(batch=2, adapter="poet") as session:
        session.prefill(np.repeat(TOKENS, 2, 0), np.array([9, 0]))
        with pytest.raises(BadSetting, match="row 0, which holds tokens"):
            session.use_adapter("clerk")
        session.use_adapter(["poet", "clerk"])
        assert session.adapters == ("poet", "clerk")
        session.reset()
        session.use_adapter(None)
        assert session.adapters == (None, None)


def test_an_adapter_is_freed_when_no_session_has_it(both, home):
    assert sorted(both.adapters) == ["clerk", "poet"]
    session = both.session(adapter="poet")
    wanted = session.prefill(TOKENS)
    with pytest.raises(AdapterInUse, match="'poet' is used by 1 open session"):
        both.adapters.free("poet")
    with pytest.raises(NoSlots, match="holds 2 of 2 adapters"):
        both.adapters.load(home / "poet.kva", "more")
    session.close()
    before = both.session()
    plain = before.prefill(TOKENS)
    both.adapters.free("poet")
    assert list(both.adapters) == ["clerk"]
    both.adapters.load(home / "poet.kva", "again")
    with both.session(adapter="again") as session:
        assert_array_equal(session.prefill(TOKENS), wanted)
    before.reset()
    assert_array_equal(before.prefill(TOKENS), plain)
    before.close()


def test_an_adapter_that_another_thread_frees_is_not_given_to_a_row(both, monkeypatch):
    session = both.session()
    chosen = type(both.adapters).choose

    def freed_meanwhile(self, name, scale):
        found = chosen(self, name, scale)
        self.free(name)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(type(both.adapters), "choose", freed_meanwhile)
        with pytest.raises(UnknownName):
            session.use_adapter("poet")
    assert session.adapters == (None,)
    session.close()


def test_a_load_that_is_interrupted_leaves_nothing(both, home, monkeypatch):
    with both.session(adapter="poet") as session:
        wanted = session.prefill(TOKENS)
    both.adapters.free("poet")
    fill = type(both.adapters)._fill

    def interrupted(self, slot, layers):
        fill(self, slot, layers)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(both.adapters), "_fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            both.adapters.load(home / "clerk.kva", "more")
    slots = slots_of(both._engine.program)
    ranks = [both.data[parts[RANKS][1].name].array() for parts in slots.values()]
    assert max(map(np.count_nonzero, ranks)) == 1, "of clerk alone"
    both.adapters.load(home / "poet.kva")
    with both.session(adapter="poet") as session:
        assert_array_equal(session.prefill(TOKENS), wanted)


def test_the_default_has_its_scale_unless_another_is_asked_for(both):
    both.adapters.use("poet", 0.5)
    with (
        both.session() as half,
        both.session(scale=1.0) as whole,
        both.session(adapter="poet") as named,
        both.session(adapter=[None]) as plain,
    ):
        assert half.adapters == whole.adapters == named.adapters == ("poet",)
        assert plain.adapters == (None,)
        results = [each.prefill(TOKENS) for each in (half, whole, named, plain)]
    assert_array_equal(results[1], results[2])
    assert not np.allclose(results[0], results[1], atol=1e-3)
    assert not np.allclose(results[0], results[3], atol=1e-3)
    with pytest.raises(BadSetting, match="finite"):
        both.adapters.use("poet", "much")
    with pytest.raises(UnknownName):
        both.adapters.use(["poet"])


def test_adapters_survive_the_release_of_memory(both):
    with both.session(adapter="poet") as session:
        wanted = session.prefill(TOKENS)
        both.release()
        session.reset()
        assert_array_equal(session.prefill(TOKENS), wanted)


def test_generation_with_an_adapter_is_that_of_peft(both, model, home):
    from peft import PeftModel

    with told_by_peft():
        adapted = PeftModel.from_pretrained(copy.deepcopy(model), str(home / "poet"))
    tokens = torch.from_numpy(TOKENS)
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    whole = adapted.generate(input_ids=tokens, **settings)
    wanted = whole[0, TOKENS.shape[1] :].tolist()
    with both.session(adapter="poet") as session:
        found = generate(session, TOKENS[0], max_tokens=8, eos_token_id=None)
        assert list(found) == wanted
    with both.session(adapter="poet", snapshots=4) as session:
        drafted = generate(
            session, TOKENS[0], draft="prompt", max_tokens=8, eos_token_id=None
        )
        assert list(drafted) == wanted
    both.adapters.use("poet")
    with both.session(batch=3) as session:
        many = generate(session, [TOKENS[0]] * 3, max_tokens=8, eos_token_id=None)
        assert list(zip(*many, strict=True)) == [tuple(wanted)] * 3


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"adapter": "pot"}, UnknownName, "adapter 'pot'.*'poet'"),
        ({"adapter": ["poet", None]}, BadSetting, "for each of 1 rows"),
        ({"adapter": 5}, UnknownName, "adapter 5"),
        ({"adapter": [["poet"]]}, UnknownName, "adapter"),
        ({"adapter": [["poet"], None]}, BadSetting, "for each of 1 rows"),
        ({"adapter": "poet", "scale": "x"}, BadSetting, "finite"),
        ({"adapter": "poet", "scale": 10**400}, BadSetting, "finite"),
        ({"scale": 0.5}, BadSetting, "which a scale is of"),
        ({"adapter": "poet", "scale": [1, 2]}, BadSetting, "for each of 1 rows"),
        ({"adapter": "poet", "scale": float("nan")}, BadSetting, "finite"),
        ({"adapter": "poet", "scale": True}, BadSetting, "finite"),
    ],
)
def test_wrong_adapters_are_refused_and_no_session_stays(both, asked, error, text):
    with pytest.raises(error, match=text):
        both.session(**asked)
    both.adapters.free("poet")


def test_an_adapter_with_gains_cannot_be_scaled(program, model, home, tmp_path):
    save_adapter(model, tmp_path / "peft", use_dora=True)
    file = convert(tmp_path / "peft", program, tmp_path / "dora.kva", home / "model")
    program.adapters.load(file)
    with pytest.raises(BadSetting, match="DoRA"):
        program.session(adapter="dora", scale=0.5)


def test_a_bundle_without_slots_says_how_to_have_them(tmp_path, home):
    plain = write_bundle(tmp_path / "plain.kvc", linear_program())
    with load(plain) as program:
        for ask in (
            lambda: program.adapters.load(home / "poet.kva"),
            lambda: program.session(adapter="poet"),
        ):
            with pytest.raises(NoSlots, match="--adapters COUNT"):
                ask()
