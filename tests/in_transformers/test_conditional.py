"""`KvcForConditionalGeneration` beside the models that it stands for."""

import encoder_models
import pytest
import seeing_models
import seq2seq_models
import torch
from daily import RARELY
from exported_models import Door, exported_to
from transformers import GenerationMixin, pipeline

from kvc.runtime import BadSetting
from kvc.transformers import KvcForCausalLM, KvcForConditionalGeneration

LENGTH = {"max_new_tokens": 8, "min_new_tokens": 8}
TOLERANCE = {"atol": 3e-5, "rtol": 1e-5}


def seeded(model, **settings):
    """Generate as `GenerationMixin` does; Whisper has a way of its own."""
    torch.manual_seed(0)
    return GenerationMixin.generate(model, **{**LENGTH, **settings})


def kvc_of(door):
    return KvcForConditionalGeneration(door.exported)


def tokens(rows, count):
    made = torch.Generator().manual_seed(5)
    return torch.randint(3, 80, (rows, count), generator=made)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    model = seq2seq_models.build("t5", num_layers=1, num_decoder_layers=1)
    folder = tmp_path_factory.mktemp("t5")
    inputs = {"input_ids": tokens(1, 4)}
    settings = {"batch": 6, "all_logits": False}
    return Door(model, folder, exported_to(folder, model, inputs, **settings))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    changes = {"encoder_layers": 1, "decoder_layers": 1}
    model = seq2seq_models.build("whisper", **changes)
    folder = tmp_path_factory.mktemp("whisper")
    inputs = {"input_features": _sounds(model)}
    made = exported_to(folder, model, inputs, all_logits=False)
    return Door(model, folder, made)


def _sounds(model):
    one = torch.from_numpy(seq2seq_models.inputs_of(model)[0])
    return torch.cat([one, one.flip(-1)])


def shallow(kind, settings):
    text = settings["text_config"] | {"num_hidden_layers": 1}
    vision = settings["vision_config"]
    if "depth" in vision:
        vision = vision | {"depth": 1}
    parts = {"text_config": text, "vision_config": vision}
    return seeing_models.build(kind, settings | parts)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    model = shallow(*seeing_models.MODELS["llava"])
    model.generation_config.pad_token_id = 0
    folder = tmp_path_factory.mktemp("llava")
    return Door(
        model, folder, exported_to(folder, model, seen(model), all_logits=False)
    )


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    model = shallow(*seeing_models.SIZED["qwen2_vl"])
    model.generation_config.pad_token_id = 0
    folder = tmp_path_factory.mktemp("qwen")
    return Door(
        model, folder, exported_to(folder, model, seen_at_sizes(), all_logits=False)
    )


def seen(model):
    """Return two rows of text, one with two pictures and one with one."""
    places = seeing_models.POSITIONS
    ids = tokens(2, 3 * places)
    ids[0, 2 : 2 + places] = ids[:, -3 - places : -3] = seeing_models.TOKEN
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    pixels = torch.from_numpy(encoder_models.pixels(3))
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}


def seen_at_sizes():
    """Return two rows of text with a picture of 2 x 3 and one of 2 x 2 groups."""
    grids = torch.tensor([[1, 4, 6], [1, 4, 4]])
    ids = tokens(2, 12)
    ids[0, 3:9] = ids[1, 4:8] = seeing_models.TOKEN
    made = torch.Generator().manual_seed(6)
    pixels = torch.randn(24 + 16, 3 * 2 * 4 * 4, generator=made)
    kinds = (ids == seeing_models.TOKEN).long()
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": kinds,
    }  # fmt: skip


def check_ways(door, given, *ways):
    for way in ({}, {"num_beams": 3}, *ways):
        wanted = seeded(door.model, **given, **way)
        assert torch.equal(seeded(kvc_of(door), **given, **way), wanted), way


def check_logits(door, given):
    asked = {"return_dict_in_generate": True, "output_logits": True}
    wanted = seeded(door.model, **given, **asked)
    found = seeded(kvc_of(door), **given, **asked)
    assert type(found) is type(wanted)
    logits = (torch.stack(one.logits) for one in (found, wanted))
    torch.testing.assert_close(*logits, **TOLERANCE)


def test_an_encoder_hears_padded_texts(t5):
    ids = tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    check_logits(t5, given)
    check_ways(t5, given, {"do_sample": True, "num_return_sequences": 2})
    one = {name: value[:1] for name, value in given.items()}
    check_ways(t5, one, {"prompt_lookup_num_tokens": 3})


def test_a_forward_of_an_encoder_and_a_decoder_returns_logits(t5):
    given = {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 5)}
    with torch.no_grad():
        wanted = t5.model(**given)
    found = t5.exported(**given)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found.logits, wanted.logits, **TOLERANCE)
    with pytest.raises(BadSetting, match="decoder_input_ids: expected a tensor"):
        t5.exported(input_ids=tokens(2, 9))


def test_a_decoder_begins_with_the_tokens_it_is_given(t5):
    given = {"input_ids": tokens(1, 9), "decoder_input_ids": torch.tensor([[0, 5, 6]])}
    check_ways(t5, given)


@RARELY
def test_sounds_are_heard(whisper):
    given = {"input_features": _sounds(whisper.model)}
    given["decoder_input_ids"] = torch.tensor([[95, 7], [95, 8]])
    check_logits(whisper, given)
    check_ways(whisper, given)
    assert kvc_of(whisper).main_input_name == "input_features"


def test_pictures_are_seen_also_in_padded_rows_and_beams(llava):
    given = seen(llava.model)
    check_logits(llava, given)
    check_ways(llava, given, {"do_sample": True})
    with torch.no_grad():
        wanted = llava.model(**given)
    found = llava.exported(**given)
    assert type(found) is type(wanted)
    shown = given["attention_mask"].bool()
    torch.testing.assert_close(found.logits[shown], wanted.logits[shown], **TOLERANCE)


def test_text_alone_is_read_too(llava):
    text = {"input_ids": tokens(2, 6)}
    check_ways(llava, text)
    found = KvcForCausalLM(llava.exported).generate(**text, **LENGTH)
    assert torch.equal(found, seeded(llava.model, **text))


@RARELY
def test_pictures_that_do_not_fit_the_tokens_are_refused(llava, qwen):
    given = seen(llava.model)
    few = {**given, "pixel_values": given["pixel_values"][:2]}
    with pytest.raises(BadSetting, match="pixel_values: expected 3 pictures"):
        kvc_of(llava)(**few)
    cache = kvc_of(llava)(input_ids=given["input_ids"][:, :2]).past_key_values
    with pytest.raises(BadSetting, match="none after the first call"):
        kvc_of(llava)(**given, past_key_values=cache)
    sized = seen_at_sizes()
    with pytest.raises(BadSetting, match="image_grid_thw"):
        kvc_of(qwen)(**{**sized, "image_grid_thw": None})
    with pytest.raises(BadSetting, match="pixel_values"):
        kvc_of(qwen)(**{**sized, "pixel_values": sized["pixel_values"][1:]})
    video = {**sized, "image_grid_thw": torch.tensor([[2, 2, 6], [1, 4, 4]])}
    with pytest.raises(BadSetting, match="1 frame"):
        kvc_of(qwen)(**video)


@RARELY
def test_pictures_of_sizes_of_their_own_stay_with_their_rows(qwen):
    given = seen_at_sizes()
    check_logits(qwen, given)
    check_ways(qwen, given)


def test_each_class_names_the_other(t5):
    with pytest.raises(BadSetting, match="this is one for KvcForConditionalGeneration"):
        KvcForCausalLM(t5.exported)


def test_a_pipeline_of_pictures_takes_a_bundle(llava, monkeypatch):
    errors = []
    monkeypatch.setattr("transformers.pipelines.base.logger.error", errors.append)
    processor = seeing_models.processor()
    found, wanted = (
        pipeline("image-text-to-text", model=model, processor=processor, device="cpu")(
            text="<image> 5 6 7",
            images=seeing_models.picture(3),
            generate_kwargs={"max_new_tokens": 5, "do_sample": False},
        )
        for model in (kvc_of(llava), llava.model)
    )
    assert found == wanted
    assert errors == []
