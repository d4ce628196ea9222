"""The results that README.md shows are those of BENCHMARKS.md, in one form."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "tests/benchmarks"
RESULTS = sorted((BENCHMARKS / "results").glob("*.json"))
PAGE = (ROOT / "BENCHMARKS.md").read_text()


@pytest.fixture
def here(monkeypatch):
    """Let benchmarks be imported."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_figures_are_those_of_the_page(path, here):
    from data_bench import number

    results = json.loads(path.read_text())
    assert results["date"] in PAGE
    assert results["machine"].split(",")[0] in PAGE
    for stack in results["stacks"]:
        speeds = stack["tokens_per_second"].values()
        cells = [f"{number(m)} ({number(a)} to {number(b)})" for m, a, b in speeds]
        assert f"| {' | '.join([stack['name'], *cells])} |" in PAGE
    for point in results["limits"]:
        start = f"| {point['stack']} | {point['figure']} | {number(point['limit'])} |"
        (row,) = re.findall(rf"^{re.escape(start)}.* \| {point['of_limit']:.2f} \|$",
                            PAGE, re.MULTILINE)  # fmt: skip
        assert f"| {number(point['speed'])} |" in row


def test_a_run_writes_the_same_form(here, tmp_path):
    from data_bench import Samples
    from xnnpack_limits import find_points
    from xnnpack_results import about, results_of, versions_of, write_results

    moments = ("loaded", "first", "ran")
    memory = {f"{w}_{k}": 1e6 for w in moments for k in ("anon", "shmem", "file")}
    speeds = {"prefill_128_s": 0.1, "prefill_512_s": 0.5}
    speeds |= {"decode_128_s": 0.01, "decode_1024_s": 0.02}
    own = {**speeds, **memory, "load_s": 0.03, "start_s": 0.2, "peak_nbytes": 9e6}
    probe = {"read_bytes": 1e9, "int8_products": 1e9, "float_products": 1e9}
    rounds = {"kvc cpu_q8": own, "llama.cpp Q8_0": speeds, "the machine": probe}
    found = {name: Samples((figures, figures)) for name, figures in rounds.items()}
    nbytes = {"kvc cpu_q8": 10**6, "llama.cpp Q8_0": 10**6}
    points = find_points(found, nbytes, "a")
    told = {"versions": versions_of(None, {"onnx onnxruntime": ""})}
    told |= about("a", "a machine", 2) | results_of(found, nbytes, points)
    write_results(told, tmp_path / "results.json")
    made = json.loads((tmp_path / "results.json").read_text())
    for path in RESULTS:
        known = json.loads(path.read_text())
        assert made.keys() - {"rounds"} == known.keys() - {"note"}
        assert made["stacks"][0].keys() == known["stacks"][0].keys()
        assert made["limits"][0].keys() == known["limits"][0].keys()
        speeds_of = [each["stacks"][0]["tokens_per_second"] for each in (made, known)]
        assert speeds_of[0].keys() == speeds_of[1].keys()
    assert made["stacks"][1].keys() == {"name", "tokens_per_second"}


def test_the_picture_is_that_of_the_results(here, tmp_path):
    mpl = pytest.importorskip("matplotlib")
    picture = (BENCHMARKS / "figures/readme.svg").read_text()
    if f"Matplotlib v{mpl.__version__}," not in picture:
        pytest.skip("another matplotlib draws other bytes")
    from readme_picture import MACHINES, draw, read

    draw({name: read(file) for name, file in MACHINES.items()}, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == picture
