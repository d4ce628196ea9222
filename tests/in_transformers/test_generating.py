"""`generate` of transformers, on a bundle and on the model that it was made of."""

import copy
import warnings

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteriaList,
    TextStreamer,
    pipeline,
)

from kvc.runtime import BadSetting, CacheOverflow, SettingIgnored, load
from kvc.transformers import KvcCache, KvcForCausalLM, KvcForConditionalGeneration

IDS = torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(3))
REPEATING = torch.cat([IDS[:1], IDS[:1], IDS[:1]], 1)
LEFT = torch.ones_like(IDS)
LEFT[0, :3] = 0
KINDS = ["alone", "together"]
LENGTH = {"max_new_tokens": 12, "min_new_tokens": 12}

WAYS = {
    "greedy": {"input_ids": IDS[:1]},
    "of two rows": {"input_ids": IDS},
    "padded on the left": {"input_ids": IDS, "attention_mask": LEFT},
    "sampling": {"input_ids": IDS, "do_sample": True, "top_k": 20, "temperature": 1.5},
    "answers": {"input_ids": IDS, "do_sample": True, "num_return_sequences": 3},
    "beams": {"input_ids": IDS[:1], "num_beams": 3},
    "beams of padded rows": {
        "input_ids": IDS, "attention_mask": LEFT, "num_beams": 3,
        "num_return_sequences": 2,
    },
    "sampled beams": {"input_ids": IDS[:1], "num_beams": 3, "do_sample": True},
    "guesses from the prompt": {"input_ids": REPEATING, "prompt_lookup_num_tokens": 4},
    "chunks": {"input_ids": IDS, "attention_mask": LEFT, "prefill_chunk_size": 2},
    "penalties": {
        "input_ids": IDS, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2,
    },
    "bad words": {"input_ids": IDS, "bad_words_ids": [[5], [9, 8]]},
}  # fmt: skip


def seeded(model, **settings):
    torch.manual_seed(0)
    return model.generate(**{**LENGTH, **settings})


@pytest.fixture(params=KINDS)
def door(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_the_model(door, way):
    wanted = seeded(door.model, **WAYS[way])
    assert torch.equal(seeded(door.kvc, **WAYS[way]), wanted)
    assert len(wanted.unique()) > 3, "nothing is tested by a word that repeats"


def test_logits_and_scores_are_those_of_the_model(door):
    asked = {
        "return_dict_in_generate": True, "output_logits": True, "output_scores": True,
    }  # fmt: skip
    wanted = seeded(door.model, input_ids=IDS, attention_mask=LEFT, **asked)
    found = seeded(door.kvc, input_ids=IDS, attention_mask=LEFT, **asked)
    for name in ("logits", "scores"):
        torch.testing.assert_close(
            torch.stack(found[name]), torch.stack(wanted[name]), atol=2e-5, rtol=1e-5
        )
    assert isinstance(found.past_key_values, KvcCache)
    assert found.past_key_values.get_seq_length() == 7 + 11


def test_a_padded_row_gets_what_it_gets_alone(door):
    both = seeded(door.kvc, input_ids=IDS, attention_mask=LEFT)
    (alone,) = seeded(door.kvc, input_ids=IDS[:1, 3:])
    assert torch.equal(both[0, 3:], alone)


def test_a_row_that_is_padded_on_the_right_gets_it_too(door):
    """transformers warns of such padding, and goes on after the padding."""
    right = torch.cat([IDS[:1, 3:], torch.zeros_like(IDS[:1, :3])], 1)
    mask = (right != 0).long()
    found = seeded(door.kvc, input_ids=right, attention_mask=mask)
    (alone,) = seeded(door.kvc, input_ids=IDS[:1, 3:])
    assert torch.equal(found[0, 7:], alone[4:])


def test_a_model_assists_a_bundle_and_a_bundle_assists_itself(door, alone):
    wanted = seeded(door.model, input_ids=IDS[:1])
    for assistant in (alone.model, alone.kvc):
        found = seeded(door.kvc, input_ids=IDS[:1], assistant_model=assistant)
        assert torch.equal(found, wanted)


def test_a_bundle_assists_a_model(alone):
    wanted = seeded(alone.model, input_ids=IDS[:1])
    found = seeded(alone.model, input_ids=IDS[:1], assistant_model=alone.kvc)
    assert torch.equal(found, wanted)


def test_a_conversation_goes_on_in_its_cache(door):
    for model in (door.model, door.kvc):
        first = seeded(model, input_ids=IDS[:1], return_dict_in_generate=True)
        longer = torch.cat([first.sequences, IDS[1:]], 1)
        found = seeded(model, input_ids=longer, past_key_values=first.past_key_values)
        assert torch.equal(found, seeded(door.model, input_ids=longer))


def test_one_prefix_serves_many_prompts_by_copies_of_its_cache(door):
    prefix = door.kvc(input_ids=IDS[:1]).past_key_values
    for row in range(2):
        longer = torch.cat([IDS[:1], IDS[row : row + 1, :3]], 1)
        cache = copy.deepcopy(prefix)
        found = seeded(door.kvc, input_ids=longer, past_key_values=cache)
        assert torch.equal(found, seeded(door.model, input_ids=longer))
    assert prefix.get_seq_length() == 7


class Only(LogitsProcessor):
    """Allow some tokens alone."""

    def __call__(self, input_ids, scores):
        scores[:, 9:] = -torch.inf
        return scores


def test_processors_criteria_and_streamers_are_called(door, capsys):
    words = {str(n): n for n in range(64)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_words(words))
    stops = StoppingCriteriaList(
        [lambda ids, scores, **_: ids[:, -1] == int(ids.max())]
    )
    given = {
        "input_ids": IDS[:1], "logits_processor": LogitsProcessorList([Only()]),
    }  # fmt: skip
    wanted = seeded(door.model, **given)
    found = seeded(door.kvc, streamer=TextStreamer(tokenizer), **given)
    assert torch.equal(found, wanted)
    assert found[:, 7:].max() < 9
    assert capsys.readouterr().out.split() == tokenizer.decode(found[0]).split()
    settings = {"input_ids": IDS[:1], "stopping_criteria": stops}
    assert torch.equal(seeded(door.kvc, **settings), seeded(door.model, **settings))


def test_settings_come_from_a_config_as_well(alone):
    config = GenerationConfig(max_new_tokens=5, num_beams=2, pad_token_id=0)
    wanted = alone.model.generate(IDS[:1], generation_config=config)
    assert torch.equal(alone.kvc.generate(IDS[:1], generation_config=config), wanted)


@pytest.mark.parametrize(
    "settings",
    [
        {"cache_implementation": "static"},
        {"cache_implementation": "paged"},
        {"cache_implementation": "quantized", "cache_config": {"nbits": 4}},
        {"past_key_values": DynamicCache()},
        {"use_cache": False},
        {"generation_config": GenerationConfig(cache_implementation="static")},
        {"cache_implementation": "static", "prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_settings_of_caches_are_ignored_with_one_warning(alone, settings):
    wanted = seeded(alone.model, input_ids=IDS[:1])
    with pytest.warns(SettingIgnored, match="sessions of kvc own the cache") as told:
        found = seeded(alone.kvc, input_ids=IDS[:1], **settings)
    assert len([one for one in told if one.category is SettingIgnored]) == 1
    assert torch.equal(found, wanted)


def test_a_text_ends_where_sessions_are_full(alone):
    with pytest.warns(SettingIgnored, match="compiled for 128 positions"):
        found = seeded(
            alone.kvc, input_ids=IDS[:1], max_new_tokens=300, eos_token_id=-1
        )
    assert found.shape == (1, 129)
    cache = alone.kvc.new_cache()
    with pytest.raises(CacheOverflow):
        alone.kvc(input_ids=torch.ones(1, 200).long(), past_key_values=cache)
    with pytest.raises(BadSetting, match="whose last call did not fail"):
        alone.kvc(input_ids=IDS, past_key_values=cache)
    cache.reset()
    assert alone.kvc(input_ids=IDS, past_key_values=cache).logits.shape == (2, 7, 64)


def test_states_that_cannot_go_back_are_restored_and_run_again(alone, monkeypatch):
    """As those of recurrent layers, which transformers lets no guesses be made for."""
    monkeypatch.setattr("kvc.transformers.rows._goes_back", lambda session: False)
    given = {"input_ids": REPEATING, "prompt_lookup_num_tokens": 4}
    assert torch.equal(seeded(alone.kvc, **given), seeded(alone.model, **given))
    given = {"input_ids": IDS[:1], "assistant_model": alone.kvc}
    assert torch.equal(seeded(alone.kvc, **given), seeded(alone.model, **given))
    cache = alone.kvc.new_cache()
    cache.activate_past_recording()
    for begin in (0, 3):
        ids = IDS[:, begin : begin + 3]
        cache = alone.kvc(input_ids=ids, past_key_values=cache).past_key_values
    cache.crop(-3)
    found = alone.kvc(input_ids=IDS[:, 3:], past_key_values=cache).logits
    wanted = alone.kvc(input_ids=IDS).logits[:, 3:]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_embeddings_begin_a_text(alone, together):
    embeds = alone.model.get_input_embeddings()(IDS).detach()
    given = {"inputs_embeds": embeds, "attention_mask": LEFT}
    assert torch.equal(seeded(alone.kvc, **given), seeded(alone.model, **given))
    assert torch.equal(
        seeded(alone.kvc, **given, num_beams=2),
        seeded(alone.model, **given, num_beams=2),
    )
    with pytest.raises(BadSetting, match="compiled without KvcConfig"):
        seeded(together.kvc, **given)


def test_misspelt_settings_are_told_as_transformers_tells_them(alone):
    with pytest.raises(ValueError, match="max_new_token"):
        alone.kvc.generate(IDS[:1], max_new_token=3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"attention_mask": torch.ones(2, 6)}, r"attention_mask: .*\[2, 7\].*\[2, 6\]"),
        (
            {"attention_mask": torch.ones(2, 1, 7, 7)},
            r"attention_mask: expected \[2, 7",
        ),
        ({"past_key_values": DynamicCache()}, "KvcCache of this program.*DynamicCache"),
        ({"logits_to_keep": torch.tensor([1, 2])}, "a number of last tokens"),
        ({"input_ids": None}, "input_ids: expected a tensor"),
        ({"position_ids": torch.arange(7)[None] + 3}, "position_ids: expected none"),
    ],
)
def test_a_forward_says_what_does_not_fit(alone, call, error):
    with pytest.raises(BadSetting, match=error):
        alone.kvc(**{"input_ids": IDS, **call})


def test_what_a_bundle_cannot_return_is_told(alone):
    for name in ("output_attentions", "output_hidden_states"):
        asked = {name: True, "return_dict_in_generate": True}
        with pytest.raises(BadSetting, match="a bundle returns logits alone"):
            seeded(alone.kvc, input_ids=IDS, **asked)


def test_a_cache_is_cropped_reordered_and_repeated(door):
    cache = door.kvc(input_ids=IDS, attention_mask=LEFT).past_key_values
    cache.crop(0)
    assert cache.get_seq_length() == 7
    cache.crop(-5)
    with pytest.raises(BadSetting, match="crop: expected from -2 to 0"):
        cache.crop(-3)
    with pytest.raises(BadSetting, match="crop"):
        cache.crop(1)
    cache.reorder_cache(torch.tensor([1, 0]))
    mask = torch.cat([LEFT[[1, 0], :2], LEFT[[1, 0]] * 0 + 1], 1)
    found = door.kvc(input_ids=IDS, attention_mask=mask, past_key_values=cache)
    wanted = door.kvc(
        input_ids=torch.cat([IDS[[1, 0], :2], IDS], 1), attention_mask=mask
    )
    torch.testing.assert_close(found.logits, wanted.logits[:, 2:], atol=1e-5, rtol=0)
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    more = door.kvc(input_ids=IDS[[0, 0, 1, 1], :1], past_key_values=cache)
    torch.testing.assert_close(more.logits[0], more.logits[1], atol=1e-5, rtol=0)
    with pytest.raises(BadSetting, match="4 rows, as the cache has"):
        door.kvc(input_ids=IDS, past_key_values=cache)
    cache.reset()
    assert (cache.get_seq_length(), cache.batch_size) == (0, -1)
    assert bool(cache)


def test_logits_of_as_many_columns_are_returned_as_asked(door):
    with torch.no_grad():
        whole = door.model(input_ids=IDS, attention_mask=LEFT).logits
    for keep in (0, 1, 3, 7, 50):
        found = door.kvc(input_ids=IDS, attention_mask=LEFT, logits_to_keep=keep).logits
        wanted = whole[:, -keep:]
        shown = LEFT[:, -keep:].bool()
        assert found.shape == wanted.shape
        torch.testing.assert_close(found[shown], wanted[shown], atol=1e-5, rtol=0)
    one = door.kvc(input_ids=IDS, return_dict=False)
    assert isinstance(one, tuple)


def test_a_pipeline_takes_a_bundle(alone, monkeypatch):
    errors = []
    monkeypatch.setattr("transformers.pipelines.base.logger.error", errors.append)
    words = {str(n): n for n in range(64)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_words(words), eos_token="2", pad_token="0"
    )
    pipes = [
        pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
        for model in (alone.model, alone.kvc)
    ]
    texts = ["5 6 7", "8 9"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, found = (
            pipe(texts, max_new_tokens=6, batch_size=2, do_sample=False)
            for pipe in pipes
        )
    assert found == wanted
    assert errors == []


def test_the_bundle_alone_is_enough(alone):
    found = KvcForCausalLM.from_pretrained(alone.folder / "model.kvc", threads=None)
    assert found.config.vocab_size == 64
    assert not hasattr(found, "hf_device_map")
    assert torch.equal(
        seeded(found, input_ids=IDS, pad_token_id=0), seeded(alone.model, input_ids=IDS)
    )
    with load(alone.folder / "model.kvc") as program:
        again = KvcForCausalLM(program).generate(IDS[:1], max_new_tokens=3)
    assert again.shape == (1, 10)


def test_the_other_class_is_named(alone):
    with pytest.raises(BadSetting, match="this is one for KvcForCausalLM"):
        KvcForConditionalGeneration.from_pretrained(alone.folder)
    with pytest.raises(BadSetting, match="source: expected an export"):
        KvcForCausalLM("a path")
    with pytest.raises(BadSetting, match="device: expected cpu"):
        alone.kvc.to("cuda")


def _words(words):
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(words, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made
