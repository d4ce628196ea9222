"""What documents of transformers and of its export to ExecuTorch show, done with kvc.

transformers' page of ExecuTorch, and pages of optimum-executorch:
- a model is exported as it is opened, by the name of a recipe; it is saved, and opened;
- the same by a command, whose folder a class opens; a prompt is continued to a length;
- a class of the one replaces a class of the other, and nothing else changes;
- at run time a prompt is continued with a temperature, and text is streamed.

transformers' page of exporters:
- a config says the format, in a dict or as an object; auto classes find the exporter;
- a model is exported with example inputs, run, saved and loaded, with other sizes;
- a model that generates is exported in stages, or part by part.

What tests of transformers check of formats (tests/exporters), and where it is here:
- each model class: exported outputs are those of the model, for sizes that vary or not
  (`test_exporting.py`, `test_conditional.py`);
- a registered format is found, and a config goes through a dict (`test_exporting.py`);
- a decode graph takes any number of tokens (`test_generating.py`, guesses and chunks);
- a cache changes in place from step to step, and logits stay those of the model
  (`test_generating.py`, `test_conditional.py`);
- saved and loaded exports generate what those in memory do (below, and
  `test_exporting.py`);
- an exported draft assists (`test_generating.py`);
- a quantized export runs (below, by recipes).
"""

import shlex
from contextlib import chdir

import pytest
import torch
from click.testing import CliRunner
from daily import RARELY
from exported_models import model_of, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.exporters import AutoExportConfig, AutoHfExporter, ExportedModel
from transformers.exporters.utils import decompose_for_generation

from kvc.runtime import generate, load
from kvc.schema.errors import UnsupportedModel
from kvc.tools.cli import main
from kvc.transformers import KvcForCausalLM

PROMPT = "5 6 7"
GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def opened(source):
    """A model that was exported as it was opened, by the name of a recipe."""
    return KvcForCausalLM.from_pretrained(source, recipe="xnnpack_q8")


def test_a_model_is_exported_as_it_is_opened_then_saved_and_opened(
    source, opened, tmp_path
):
    opened.save_pretrained(tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(source)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    wanted = opened.generate(**inputs, **GREEDY)
    again = KvcForCausalLM.from_pretrained(tmp_path / "exported")
    again.save_pretrained(tmp_path / "again")
    assert again.generation_config.temperature == 0.7, "as the model's folder says"
    assert torch.equal(again.generate(**inputs, **GREEDY), wanted)
    assert len(tokenizer.batch_decode(wanted)[0].split()) == 9
    assert again.config.model_type == "llama"


def test_a_command_compiles_what_a_class_opens(source, opened, tmp_path):
    line = f"compile {source} --recipe xnnpack_q8 -o model.kvc --quiet"
    with chdir(tmp_path):
        done = CliRunner().invoke(main, shlex.split(line))
    assert done.exit_code == 0, done.output
    found = KvcForCausalLM.from_pretrained(tmp_path)
    ids = tokens()
    assert torch.equal(found.generate(ids, **GREEDY), opened.generate(ids, **GREEDY))


@RARELY  # every day as in `test_generating.py`, of an export
def test_one_class_replaces_another(source):
    """By a recipe that does not round, tokens are those of the model."""
    made = [
        kind.from_pretrained(source, **options).generate(tokens(), **GREEDY)
        for kind, options in (
            (AutoModelForCausalLM, {}),
            (KvcForCausalLM, {"recipe": "cpu_fp32"}),
        )
    ]
    assert torch.equal(*made)


def test_text_is_streamed_at_run_time_with_and_without_transformers(
    source, opened, capsys
):
    tokenizer = AutoTokenizer.from_pretrained(source)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    streamer = TextStreamer(tokenizer, skip_prompt=True)
    whole = opened.generate(**inputs, **GREEDY, streamer=streamer)[0, 3:]
    assert capsys.readouterr().out.split() == tokenizer.decode(whole).split()
    with load(opened.program.path) as program, program.session() as session:
        settings = {"max_new_tokens": 6, "temperature": 0}
        text = "".join(generate(session, PROMPT, **settings).text())
        assert text.split() == tokenizer.decode(whole).split()
        warm = generate(session, "8", max_new_tokens=100, temperature=0.8, seed=1)
        assert len(list(warm)) > 0


def test_a_config_in_a_dict_finds_the_exporter(tmp_path):
    said = {"export_format": "kvc", "recipe": "cpu_q8", "all_logits": False}
    config = AutoExportConfig.from_dict(said)
    exporter = AutoHfExporter.from_config(config)
    model, inputs = model_of(), {"input_ids": tokens()}
    exported = exporter.export(model, inputs, config=config)
    with torch.no_grad():
        wanted = model(**inputs).logits
    found = exported(**inputs).logits
    assert (found - wanted).abs().max() < wanted.abs().max() / 10, "weights are rounded"
    longer = {"input_ids": tokens(count=20)}
    assert exported(**longer).logits.shape == (1, 20, 64)
    exported.save_pretrained(tmp_path)
    again = ExportedModel.from_pretrained(tmp_path)
    assert torch.equal(again(**inputs).logits, found)


def test_stages_are_one_component_and_a_stage_alone_is_told_apart(alone, tmp_path):
    assert list(alone.exported.components) == ["model"]
    inputs = {"input_ids": tokens()}
    parts = decompose_for_generation(alone.model, inputs)
    assert set(parts) == {"prefill", "decode"}
    exporter = AutoHfExporter.from_config({"export_format": "kvc"})
    for part, given in parts.values():
        with pytest.raises(UnsupportedModel, match="caches and positions in sessions"):
            exporter.export(part, given, {"recipe": "cpu_fp32"})
