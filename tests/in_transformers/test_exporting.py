"""kvc as a format of `transformers.exporters`: configure, export, save, load, run."""

import json
import shutil
import subprocess
import sys

import encoder_models
import pytest
import torch
from daily import RARELY
from hf_folders import change_json
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig
from transformers.exporters import AutoExportConfig, AutoHfExporter, ExportedModel
from transformers.exporters.auto import EXPORT_BACKENDS
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
)

from kvc.runtime import BadSetting, Program, load
from kvc.schema.errors import (
    BadModelFolder,
    BadModelSetting,
    RecipeError,
    UnknownName,
    UnsupportedModel,
)
from kvc.transformers import KvcConfig, KvcExporter, KvcForCausalLM, KvcModelRunner

IDS = torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(3))
MASK = torch.ones_like(IDS)
MASK[1, 5:] = 0


def test_the_format_is_known_once_the_module_is_imported():
    backend = EXPORT_BACKENDS["kvc"]
    assert backend.exporter is KvcExporter
    assert backend.runner is KvcModelRunner
    assert backend.config is KvcConfig
    assert isinstance(AutoHfExporter.from_config(KvcConfig()), KvcExporter)
    assert isinstance(AutoHfExporter.from_config({"export_format": "kvc"}), KvcExporter)


def test_a_format_that_is_not_registered_is_unknown(alone, monkeypatch):
    monkeypatch.delitem(EXPORT_BACKENDS, "kvc")
    with pytest.raises(ValueError, match="Unknown export format 'kvc'"):
        ExportedModel.from_pretrained(alone.folder)


@RARELY  # every day as above, in this process
def test_a_process_that_has_not_imported_it_says_that_it_is_unknown(alone):
    code = (
        "from transformers.exporters import ExportedModel\n"
        f"path = {str(alone.folder)!r}\n"
        "try: ExportedModel.from_pretrained(path)\n"
        "except ValueError as error: print(error)\n"
        "import kvc.transformers\n"
        "print(ExportedModel.from_pretrained(path))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("Unknown export format 'kvc'")
    assert second.startswith("ExportedModel(format='kvc'")


def test_a_config_is_a_dict_and_back():
    config = KvcConfig(recipe="cpu_q4", max_length=64, prefill_sizes=(8,))
    assert AutoExportConfig.from_dict(config.to_dict()) == config
    assert json.loads(config.to_json_string())["recipe"] == "cpu_q4"
    assert dict(config)["export_format"] == "kvc"
    assert KvcConfig().recipe == "cpu_q8"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"export_format": "onnx"}, "export_format: expected 'kvc', found 'onnx'"),
        ({"quantizer": "int8"}, "quantizer: expected None, since recipes quantize"),
        ({"all_logits": 1}, "all_logits: expected True or False, found 1"),
        ({"max_length": 3}, "max_length: expected"),
        ({"batch": "two"}, "batch: expected"),
    ],
)
def test_a_config_says_what_is_wrong(settings, error):
    with pytest.raises(BadModelSetting, match=error):
        KvcConfig(**settings)


def test_names_that_are_misspelt_are_told_with_the_nearest():
    with pytest.raises(RecipeError, match="cpu_q8"):
        KvcConfig(recipe="cpu_q9")
    with pytest.raises(RecipeError, match="cache"):
        KvcConfig(cache_dtype="float8")
    with pytest.raises(BadModelSetting, match="did you mean 'recipe'"):
        AutoExportConfig.from_dict({"export_format": "kvc", "recip": "cpu_q8"})


def test_an_export_is_one_file_beside_its_configuration(alone):
    names = {path.name for path in alone.folder.iterdir()}
    assert names == {
        "model.kvc", "export.json", "config.json", "generation_config.json",
    }  # fmt: skip
    said = json.loads((alone.folder / "export.json").read_text())
    (entry,) = said["components"].values()
    metadata = entry["metadata"]
    assert metadata["architecture"] == "LlamaForCausalLM"
    assert metadata["export_config"]["recipe"] == "cpu_fp32"
    assert metadata["packages"].keys() == {"transformers", "torch", "kvc"}
    assert list(metadata["kwargs"]) == ["input_ids", "attention_mask"]
    with load(alone.folder / "model.kvc") as program:
        assert {"prefill", "decode", "prefill_all"} <= program.methods.keys()


def test_it_returns_what_the_model_returns(alone):
    with torch.no_grad():
        wanted = alone.model(IDS, attention_mask=MASK)
    found = alone.exported(input_ids=IDS, attention_mask=MASK)
    assert type(found) is type(wanted) is CausalLMOutputWithPast
    shown = MASK.bool()
    torch.testing.assert_close(
        found.logits[shown], wanted.logits[shown], atol=1e-5, rtol=0
    )
    assert (alone.exported.device.type, alone.exported.dtype) == ("cpu", torch.float32)


def test_arguments_that_it_was_not_made_for_are_dropped(alone):
    found = alone.exported(input_ids=IDS, special_tokens_mask=IDS).logits
    assert torch.equal(found, alone.exported(input_ids=IDS).logits)


def test_a_runner_names_its_options(alone):
    made = ExportedModel.from_pretrained(alone.folder, mode="read")
    assert torch.equal(made(input_ids=IDS).logits, alone.exported(input_ids=IDS).logits)
    with pytest.raises(TypeError, match=r"\['thread'\].*'threads', 'mode'"):
        ExportedModel.from_pretrained(alone.folder, thread=1)
    with pytest.raises(TypeError, match=r"'thread' .did you mean 'threads'"):
        KvcForCausalLM.from_pretrained(alone.folder, thread=1)
    with pytest.raises(BadSetting, match="mode"):
        ExportedModel.from_pretrained(alone.folder, mode="lazily")
    with pytest.raises(BadSetting, match="cuda"):
        ExportedModel.from_pretrained(alone.folder, device="cuda")


def test_an_export_is_saved_again_also_over_itself(alone, tmp_path):
    shutil.copytree(alone.folder, tmp_path / "a")
    first = ExportedModel.from_pretrained(tmp_path / "a")
    wanted = first(input_ids=IDS).logits
    first.save_pretrained(tmp_path / "b")
    first.save_pretrained(tmp_path / "a")
    for name in ("a", "b"):
        again = ExportedModel.from_pretrained(tmp_path / name)
        assert torch.equal(again(input_ids=IDS).logits, wanted)
        made = (tmp_path / name / "model.kvc").read_bytes()
        assert made == (alone.folder / "model.kvc").read_bytes()
        assert again.config.to_diff_dict() == alone.model.config.to_diff_dict()
        assert again.generation_config.pad_token_id == 0
    assert torch.equal(first(input_ids=IDS).logits, wanted), (
        "its file has been replaced"
    )


def test_weights_in_a_data_file_are_saved_within(alone, tmp_path):
    from kvc.schema.container import split_bundle

    split_bundle(alone.folder / "model.kvc", tmp_path / "split.kvc")
    assert len(list(tmp_path.iterdir())) == 2
    KvcForCausalLM.from_pretrained(tmp_path / "split.kvc").save_pretrained(
        tmp_path / "o"
    )
    assert len(list((tmp_path / "o").glob("*.kv*"))) == 1
    again = KvcForCausalLM.from_pretrained(tmp_path / "o")
    assert torch.equal(again(input_ids=IDS).logits, alone.kvc(input_ids=IDS).logits)


def test_an_export_runs_before_it_is_saved_and_by_its_one_component(alone):
    exporter, config = KvcExporter(), {"recipe": "cpu_fp32"}
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    made = exporter.export(alone.model, inputs, config)
    assert made.components.keys() == {"model"}
    found = made(**inputs).logits
    wanted = alone.exported(**inputs).logits
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    assert KvcForCausalLM(made).generate(IDS, max_new_tokens=2).shape == (2, 9)
    assert made.program.program.methods, "the compiled bundle"
    assert isinstance(made.runners["model"].program, Program)
    with pytest.raises(TypeError, match="recip"):
        exporter.export(alone.model, inputs, {"recip": "cpu_fp32"})
    with pytest.raises(TypeError, match="KvcConfig or dict"):
        exporter.export(alone.model, inputs, GenerationConfig())


def test_settings_of_generate_say_how_long_caches_are(alone):
    before = alone.model.generation_config
    settings = GenerationConfig(
        cache_implementation="static", cache_config={"max_cache_len": 48}
    )
    made = KvcExporter().export_for_generation(
        alone.model,
        {"input_ids": IDS},
        {"model": KvcConfig(recipe="cpu_fp32", all_logits=False)},
        generation_config=settings,
    )
    assert alone.model.generation_config is before
    assert made.generation_config is settings
    with made.runners["model"].program.session() as session:
        assert session.capacity == 48
    guessing = KvcForCausalLM(made)
    assert guessing.generation_config.cache_implementation is None
    found = guessing.generate(IDS[:1], prompt_lookup_num_tokens=2, max_new_tokens=3)
    assert found.shape == (1, 10)


@pytest.mark.parametrize("config", [{"prefill": KvcConfig()}, 3, {}], ids=str)
def test_other_components_are_refused(alone, config):
    if config == {}:
        return
    with pytest.raises(BadModelSetting, match="a bundle is one component"):
        KvcExporter().export_for_generation(alone.model, {"input_ids": IDS}, config)


def test_arguments_that_a_bundle_cannot_take_are_told_in_a_sentence(alone, monkeypatch):
    monkeypatch.setattr("kvc.transformers.exporter.with_cache", _compiled_before(alone))
    given = {"input_ids": IDS, "past_key_values": DynamicCache()}
    with pytest.raises(
        UnsupportedModel, match=r"takes tokens, and .*no past_key_values"
    ):
        KvcExporter().export(alone.model, given, KvcConfig())
    given = {"input_ids": IDS, "position_ids": IDS}
    with pytest.raises(UnsupportedModel, match="attention_mask, but no position_ids"):
        KvcExporter().export(alone.model, given, KvcConfig())


def _compiled_before(door):
    from types import SimpleNamespace

    program = door.kvc.program
    inside = SimpleNamespace(
        methods=tuple(program.methods.values()), metadata=dict(program.metadata)
    )
    return lambda *_: SimpleNamespace(program=inside)


# A forward without a cache


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    model = encoder_models.build("bert", "classify")
    folder = tmp_path_factory.mktemp("classifier")
    inputs = {"input_ids": IDS, "attention_mask": MASK, "return_dict": True}
    KvcExporter().export(model, inputs, KvcConfig("kvc", "cpu_fp32")).save_pretrained(
        folder
    )
    return model, folder, ExportedModel.from_pretrained(folder)


def test_a_classifier_takes_any_rows_and_tokens(classifier):
    model, _, exported = classifier
    assert model.config._attn_implementation == "eager"
    for rows, count in ((1, 1), (2, 7), (5, 20)):
        ids = torch.randint(5, 64, (rows, count))
        mask = torch.ones_like(ids)
        mask[0, max(1, count // 2) :] = 0
        with torch.no_grad():
            wanted = model(input_ids=ids, attention_mask=mask)
        found = exported(input_ids=ids, attention_mask=mask)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=0)


def test_a_forward_says_what_is_missing_or_was_fixed(classifier):
    exported = classifier[2]
    with pytest.raises(
        BadSetting, match="expected input_ids, attention_mask, as it was"
    ):
        exported(input_ids=IDS)
    with pytest.raises(BadSetting, match="return_dict: expected True"):
        exported(input_ids=IDS, attention_mask=MASK, return_dict=False)


def test_a_classifier_does_not_generate(classifier):
    model, folder, exported = classifier
    with pytest.raises(UnknownName, match="decode"):
        KvcForCausalLM(exported)
    with pytest.raises(UnknownName, match="decode"):
        KvcForCausalLM.from_pretrained(folder)
    with pytest.raises(UnsupportedModel, match="`export` takes its forward"):
        KvcExporter().export_for_generation(model, {"input_ids": IDS}, KvcConfig())


def test_an_encoder_of_pictures_stays_in_the_mode_it_was_in():
    model = encoder_models.build("vit").train()
    pixels = torch.from_numpy(encoder_models.pixels(2))
    config = KvcConfig(recipe="cpu_fp32", batch=3)
    exported = KvcExporter().export(model, {"pixel_values": pixels}, config)
    assert model.training
    model.eval()
    more = torch.from_numpy(encoder_models.pixels(3))
    with torch.no_grad():
        wanted = model(more)
    found = exported(pixel_values=more)
    assert isinstance(found, BaseModelOutputWithPooling)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)


class Plain(nn.Module):
    """A part of a model, as decompositions have them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, scale=1.0, extra=None):
        return {"y": self.layer(x) * scale, "none": extra, "n": 3}


def test_any_module_is_exported_with_its_numbers():
    x = torch.randn(2, 4)
    exported = KvcExporter().export(
        Plain(), {"x": x, "scale": 2.0}, {"recipe": "cpu_fp32"}
    )
    assert exported.config is None
    found = exported(x=x, scale=2.0)
    assert (found["none"], found["n"], found["y"].shape) == (None, 3, (2, 3))
    with pytest.raises(BadSetting, match="scale: expected 2"):
        exported(x=x, scale=3.0)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({"x": DynamicCache()}, "x is a cache, which kvc keeps in sessions"),
        ({"x": [1]}, "x is a list, and no tensor or number"),
        ({"scale": 2.0}, "no example argument is a tensor"),
    ],
)
def test_arguments_that_are_no_tensors_are_refused(inputs, error):
    with pytest.raises(UnsupportedModel, match=error):
        KvcExporter().export(Plain(), inputs, KvcConfig())


class Odd(Plain):
    """A module that returns what no export can hold."""

    def forward(self, x):
        return {"y": x, "more": object()}


class Asking(Plain):
    """A module that asks for the number of rows."""

    def forward(self, x):
        return self.layer(x) if x.shape[0] == 2 else x


def test_results_that_are_no_tensors_are_refused():
    with pytest.raises(UnsupportedModel, match="an export cannot hold its result"):
        KvcExporter().export(Odd(), {"x": torch.ones(2, 4)}, KvcConfig())


def test_a_forward_that_asks_for_sizes_is_compiled_for_those_of_the_example():
    x, config = torch.ones(2, 4), KvcConfig(recipe="cpu_fp32")
    with pytest.raises(UnsupportedModel, match=r"KvcConfig\(dynamic=False\)"):
        KvcExporter().export(Asking(), {"x": x}, config)
    config = KvcConfig(recipe="cpu_fp32", dynamic=False)
    exported = KvcExporter().export(Asking(), {"x": x}, config)
    assert exported(x=x).shape == (2, 3)


# Folders that are not whole


def test_folders_that_are_no_export_say_why(alone, tmp_path):
    def refused(error):
        with pytest.raises(BadModelFolder, match=error):
            KvcForCausalLM.from_pretrained(tmp_path)

    refused("expected one bundle, export.json or config.json, found neither")
    shutil.copytree(alone.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.kvc").unlink()
    refused("export.json names model.kvc, which is not there")
    with pytest.raises(OSError, match=r"model\.kvc"):
        ExportedModel.from_pretrained(tmp_path)
    change_json(tmp_path / "export.json", export_format="onnx")
    refused("an export to 'onnx', and not to 'kvc'")
    (tmp_path / "export.json").write_text('{"export_format": "kvc"')
    refused("export.json is damaged")
    (tmp_path / "export.json").unlink()
    for name in ("a.kvc", "b.kvc"):
        shutil.copy(alone.folder / "model.kvc", tmp_path / name)
    refused("found 2 bundles")
    (tmp_path / "a.kvc").unlink()
    found = KvcForCausalLM.from_pretrained(tmp_path)
    assert found.config.model_type == "llama", "from config.json"


def test_a_path_that_is_nothing_is_told(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no connection")

    monkeypatch.setattr("kvc.transformers.opening.snapshot_download", offline)
    with pytest.raises(BadModelFolder, match="nor a name on the Hub: no connection"):
        KvcForCausalLM.from_pretrained(tmp_path / "nothing")


def test_a_name_on_the_hub_is_fetched_with_what_was_asked(alone, monkeypatch):
    asked = {}

    def fetch(name, **options):
        asked.update(options, name=name)
        return str(alone.folder)

    monkeypatch.setattr("kvc.transformers.opening.snapshot_download", fetch)
    options = {"revision": "v2", "token": "secret", "mode": "read"}
    found = KvcForCausalLM.from_pretrained("some/model", **options)
    assert found.config.model_type == "llama"
    assert (asked["name"], asked["revision"], asked["token"]) == (
        "some/model", "v2", "secret",
    )  # fmt: skip
    assert "mode" not in asked


def test_a_recipe_for_what_is_compiled_is_refused(alone):
    for path in (alone.folder, alone.folder / "model.kvc"):
        with pytest.raises(BadModelSetting, match="none, as it is compiled already"):
            KvcForCausalLM.from_pretrained(path, recipe="cpu_q8")


def test_auto_classes_of_transformers_do_not_open_bundles(alone):
    """Nothing there asks another package; see TRANSFORMERS.md."""
    with pytest.raises(OSError, match="no file named"):
        AutoModelForCausalLM.from_pretrained(alone.folder)
