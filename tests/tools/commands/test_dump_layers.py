"""Tables of `kvc dump` of models with layers: counted alike, folded, not too wide."""

import json

import pytest
from tiny_decoder import factory

from kvc.compiler import compile_program
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_methods
from kvc.recipes import load_recipe


def deep(path, recipe):
    """Compile the step of a decoder of 20 layers."""
    sizes = {"vocab": 16, "dim": 16, "heads": 2, "kv_heads": 1, "ffn": 8, "capacity": 8}
    config = DecoderConfig(layers=20, **sizes)
    methods = decoder_methods(config, 4)[1:]
    compile_program(Decoder(config).eval(), methods, recipe).save(path)
    return path


def test_instructions_are_counted_alike_in_every_table(kvc, tmp_path):
    spec = factory()
    path = tmp_path / "fast.kvc"
    compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states).save(path)
    report = json.loads(kvc("dump", path, "--json").stdout)
    overview = kvc("dump", path).stdout
    for method in report["methods"]:
        rows = [r for r in report["operators"] if r["method"] == method["name"]]
        parts = [d for d in report["delegates"] if d["method"] == method["name"]]
        assert sum(row["count"] for row in rows) == method["computing"]
        assert sum(part["computing"] for part in parts) == method["computing"]
        views = f"({method['instructions']} with views)"
        assert f"{method['computing']} instructions {views}" in overview
    assert report["cost"]["computing"] == sum(m["computing"] for m in report["methods"])


def test_states_of_equal_layers_are_one_line_unless_all_are_asked_for(kvc, tmp_path):
    path = deep(tmp_path / "deep.kvc", "fp32")
    states = json.loads(kvc("dump", path, "--states", "--json").stdout)["states"]
    nbytes = {state["nbytes"] for state in states if state["name"].endswith("k_cache")}
    few = kvc("dump", path, "--states").stdout
    assert "layers.{0..19}.attn.k_cache" in few
    assert f"20 x {nbytes.pop():,}" in few
    every = kvc("dump", path, "--states", "--full").stdout
    assert all(state["name"] in every for state in states)
    assert "{0.." not in every


@pytest.mark.parametrize("cache", ["float32", "int8"])
def test_a_call_with_the_states_of_many_layers_is_a_short_line(kvc, tmp_path, cache):
    path = deep(tmp_path / "deep.kvc", load_recipe("cpu_fp32", cache=cache))
    lines = kvc("dump", path, "--ops", "decode").stdout.splitlines()
    (call,) = (line for line in lines if "kvc::delegate(" in line)
    assert len(call) < 500
    assert "..%" in call


@pytest.mark.parametrize("table", ["--delegates", "--size", "--states", "--memory"])
def test_a_pipe_gets_lines_as_wide_as_columns_says(kvc, tiny, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, kvc("dump", tiny, table).stdout.splitlines())) <= 50
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, kvc("dump", tiny, table).stdout.splitlines())) > 50
