"""`sweep`: models by recipes, with rows for what fails, and only what is left."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_decoder

from kvc.ray import SweepConfig, SweepRow, sweep, sweep_table
from kvc.ray.sweep_rows import RowFile
from kvc.runtime import load
from kvc.runtime.scoring import evaluate
from kvc.schema.errors import BadSetting, BatchRunning

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
TEXT = "def add(first, second):\n    return first + second\n"
ROW = SweepRow(
    "m",
    "cpu_q8",
    nbytes=1_500_000,
    compile_seconds=2.0,
    figures={"bits_per_byte": 2.0, "perplexity": 4.0, "tokens_per_second": 99.6},
)
FAILED = SweepRow("m", "cpu_q4", "kvc compile: no\nmore")


def test_models_and_recipes_make_rows_also_where_they_fail(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.chdir(Path(tiny_decoder.__file__).parent)
    model = "tiny_decoder:factory"
    config = SweepConfig(
        concurrency=2, eval_options=["--window", "24"], folder=str(tmp_path / "made")
    )
    told, output = [], tmp_path / "rows.jsonl"
    recipes = ["cpu_q8", "no_recipe"]
    found = sweep(
        [model], recipes, TEXT, output, config, lambda *each: told.append(each)
    )
    good, bad = found
    assert (good.model, good.recipe, good.error) == (model, "cpu_q8", "")
    made = tmp_path / "made" / good.bundle.rpartition("/")[2]
    assert good.nbytes == made.stat().st_size
    assert good.figures["window"] == 24
    with load(made) as program:
        expected = evaluate(good.bundle, program, TEXT.encode(), 24)
    assert good.figures["perplexity"] == expected.perplexity
    assert bad.error.startswith("kvc compile: ")
    assert "no_recipe" in bad.error
    assert (bad.nbytes, bad.figures) == (None, None)
    assert sorted(done for _, done, _ in told) == [1, 2]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert {line["recipe"] for line in lines} == {*recipes}
    before = output.read_bytes()
    assert sweep([model], recipes, TEXT, output, config, pytest.fail) == found
    assert output.read_bytes() == before
    again = replace(config, retry=True)
    told.clear()
    sweep([model], recipes, TEXT, output, again, lambda *each: told.append(each))
    assert [(row.recipe, done) for row, done, _ in told] == [("no_recipe", 2)]


@pytest.mark.exhaustive
def test_bundles_are_compared_with_one_of_them_and_removed(cluster, tmp_path):
    first, *_ = sweep(
        ["demo"],
        ["cpu_fp32"],
        TEXT,
        tmp_path / "first.jsonl",
        SweepConfig(folder=str(tmp_path)),
    )
    config = SweepConfig(eval_options=["--against", first.bundle])
    found = sweep(
        ["demo", "no_model"],
        ["cpu_q8", "cpu_q4"],
        TEXT,
        tmp_path / "rows.jsonl",
        config,
    )
    q8, q4 = found[:2]
    assert 0 < q8.figures["divergence"] < q4.figures["divergence"]
    assert q4.nbytes < q8.nbytes < first.nbytes
    assert all("no_model" in row.error for row in found[2:])
    assert sorted(file.name for file in tmp_path.glob("*.kvc")) == [
        Path(first.bundle).name
    ]
    assert sweep_table(found)[0].endswith("divergence")


def test_rows_of_the_same_text_and_options_are_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile.opened(path, {"text": "a"}) as file:
        file.add(ROW)
        with pytest.raises(BatchRunning):
            RowFile.opened(path, {"text": "a"})
    with path.open("ab") as torn:
        torn.write(b'{"damaged": 1}\n[]\n\xff\n{"model": "m", "rec')
    with RowFile.opened(path, {"text": "b"}) as file:
        assert file.rows == {}
        file.add(FAILED)
    with RowFile.opened(path, {"text": "a"}) as file:
        assert file.rows == {("m", "cpu_q8"): ROW}
    with RowFile.opened(path, {"text": "b"}) as file:
        assert file.rows == {("m", "cpu_q4"): FAILED}


def test_rows_are_a_table_with_reasons_below():
    title, first, second, reason = sweep_table([ROW, FAILED])
    assert title.split()[:3] == ["model", "recipe", "file"]
    assert first.split() == ["m", "cpu_q8", "1.50", "MB", "2.0000", "4.000", "100"]
    assert second.split() == ["m", "cpu_q4", "-", "-", "-", "-"]
    assert reason == "m, cpu_q4: kvc compile: no"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"concurrency": 0}, "concurrency: expected a whole number"),
        ({"compile_options": ["--recipe=x"]}, "compile_options: .*got --recipe=x"),
    ],
)
def test_impossible_settings_are_refused(settings, reason):
    with pytest.raises(BadSetting, match=reason):
        SweepConfig(**settings)
