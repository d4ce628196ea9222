"""`kvc bench`: tests as llama-bench has them, rounds in processes of their own."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_decoder import factory

from kvc.compiler import Method, compile_program
from kvc.tools.bench.plan import SpeedTest, fitting, most_tokens, plan_tests
from kvc.tools.bench.rounds import Measured

KVC = Path(sys.executable).parent / "kvc"
FAKE = """#!/usr/bin/env python3
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert options["-t"].isdecimal() and options["-r"] == "1", options
tokens = int(options["-p"]) + int(options["-n"])
print(json.dumps([{"samples_ns": [tokens * 500_000_000]}]))
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A tiny decoder that runs without torch, which takes a process long to import."""
    folder = tmp_path_factory.mktemp("bench")
    for recipe in ("cpu_q8", "cpu_fp32"):
        spec = factory()
        bundle = compile_program(spec.model, spec.methods, recipe, states=spec.states)
        bundle.save(folder / f"{recipe}.kvc")
    return folder


@pytest.fixture
def fast(bundles):
    """One of the two."""
    return bundles / "cpu_q8.kvc"


def bench(kvc, *arguments):
    done = kvc("bench", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["bundles"]


def test_tests_are_named_as_llama_bench_names_them():
    tests = plan_tests((128, 0, 512), (32,), (0, 1024))
    assert [test.name for test in tests] == [
        "pp128",
        "pp512",
        "tg32",
        "pp128 @ d1024",
        "pp512 @ d1024",
        "tg32 @ d1024",
    ]
    assert len(plan_tests((8, 8), (0,), (0,))) == 1


def test_speeds_are_tokens_of_all_rows_and_ratios_those_of_rounds():
    tests = (SpeedTest(10, 0, 0), SpeedTest(0, 4, 0))
    slow = Measured("a", "fp32", 1, 2, 1, tests, ((2.0, 1.0), (1.0, 2.0), (4.0, 1.0)))
    fast = Measured("b", "fp32", 1, 2, 3, tests, ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0)))
    assert (slow.speed(0).least, slow.speed(0).median, slow.speed(0).most) == (
        2.5,
        5,
        10,
    )
    assert fast.speed(1).median == 12
    assert fast.ratio(0, slow).median == 6  # of 6, 3 and 12, not 30 / 5


def test_rounds_of_two_bundles(kvc, bundles):
    paths = bundles / "cpu_q8.kvc", bundles / "cpu_fp32.kvc"
    options = ("-p", 6, "-n", 3, "-d", 0, "-d", 5, "-r", 2)
    first, second = bench(kvc, *paths, *options)
    assert (first["path"], first["recipe"]) == (str(paths[0]), "cpu_q8")
    assert (second["path"], second["recipe"]) == (str(paths[1]), "cpu_fp32")
    assert first["nbytes"] == paths[0].stat().st_size
    names = ["pp6", "tg3", "pp6 @ d5", "tg3 @ d5"]
    for one in (first, second):
        assert [test["test"] for test in one["tests"]] == names
        for test in one["tests"]:
            assert len(test["seconds"]) == 2
            rates = [(test["prompt"] or test["steps"]) / s for s in test["seconds"]]
            speed = test["tokens_per_second"]
            assert (speed["least"], speed["most"]) == (min(rates), max(rates))
        assert 0 < one["load_s"]["median"] < one["first_token_s"]["median"]
        assert len(one["memory"]) == 2
    assert {t["ratio_to_first"]["median"] for t in first["tests"]} == {1}


def test_tests_that_nobody_asked_for_fit_into_a_session(kvc, fast):
    (found,) = bench(kvc, fast, "-r", 1)
    assert [test["test"] for test in found["tests"]] == ["pp24", "tg24"]
    (deep,) = bench(kvc, fast, "-r", 1, "-d", 20)
    assert [test["test"] for test in deep["tests"]] == ["pp4 @ d20", "tg4 @ d20"]


def test_what_has_no_limit_is_measured_as_usual(tmp_path):
    path = tmp_path / "plain.kvc"
    compile_program(
        torch.nn.Linear(2, 2), [Method("forward", (torch.ones(1, 2),))]
    ).save(path)
    assert fitting((128, 512), most_tokens([str(path)], 0)) == [128, 512]


def test_tables_name_tests_and_the_ratio(kvc, fast):
    done = kvc("bench", fast, fast, "-p", 4, "-n", 0, "-r", 1)
    title, *rows = done.stdout.splitlines()
    assert title.split()[:6] == ["model", "recipe", "size", "threads", "test", "t/s"]
    assert title.endswith("of the first")
    assert rows[0].split()[:2] == [str(fast), "cpu_q8"]
    assert rows[0].endswith("1.00")
    assert "first token" in done.stdout
    assert "measuring" in done.stderr


def test_llama_bench_takes_its_turn(kvc, fast, tmp_path):
    program, model = tmp_path / "llama-bench", tmp_path / "model.gguf"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    model.write_bytes(b"GGUF")
    peer = ("--against", model, "--llama-bench", program)
    _, other = bench(kvc, fast, "-p", 4, "-n", 2, "-r", 2, *peer)
    assert (other["path"], other["recipe"], other["nbytes"]) == (
        str(model),
        "llama.cpp",
        4,
    )
    assert [t["tokens_per_second"]["median"] for t in other["tests"]] == [2, 2]
    assert (other["load_s"], other["memory"]) == (None, [])
    program.write_text("#!/bin/sh\necho no such model >&2; exit 1\n")
    done = kvc("bench", fast, "-p", 4, "-n", 0, "-r", 1, *peer)
    assert done.exit_code == 1
    assert f"llama-bench fails on {model}: no such model" in done.output
    program.write_text("#!/bin/sh\nprintf '\\377' >&2; exit 1\n")
    done = kvc("bench", fast, "-p", 4, "-n", 0, "-r", 1, *peer)
    assert rf"llama-bench fails on {model}: \xff" in done.output
    program.write_text("no program")
    done = kvc("bench", fast, "-p", 4, "-n", 0, "-r", 1, *peer)
    assert (done.exit_code, f"cannot run {program}: " in done.output) == (1, True)


def test_onnxruntime_takes_its_turn(kvc, fast, tmp_path, monkeypatch):
    package = tmp_path / "onnxruntime.py"
    package.write_text("raise ImportError")  # it may be installed here
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a model")
    (tmp_path / "model.onnx_data").write_bytes(b"weights")
    nothing = kvc("bench", fast, "-p", 4, "-n", 0, "-r", 1, "--against", model)
    assert "--onnx-python PATH" in nothing.output
    fake = Path(__file__).with_name("fake_onnxruntime.py")
    package.write_text(fake.read_text())
    arguments = ("-p", 4, "-n", 2, "-d", 3, "-r", 2, "--against", model)
    _, other = bench(kvc, fast, *arguments)
    assert (other["path"], other["recipe"], other["nbytes"]) == (
        str(model),
        "onnxruntime",
        14,
    )
    assert [t["test"] for t in other["tests"]] == ["pp4 @ d3", "tg2 @ d3"]
    model.write_bytes(b"other")
    done = kvc("bench", fast, *arguments)
    assert f"fails on {model}: it has inputs that are tensor(double)" in done.output
    model.write_bytes(b"broken")
    done = kvc("bench", fast, *arguments)
    assert f"ONNX Runtime fails on {model}: no model" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-p", 0, "-n", 0), "nothing to measure"),
        (("-p", 100, "-n", 0), "the prompt has 100 tokens"),
        (("-d", 23, "-p", 2, "-n", 0), "room for 1: it holds 23 of 24"),
        (("-b", 2), "no session size 'batch'"),
        (("-b", 2, "--against", "m.gguf"), "no --batch with --against"),
        (("--against", "m.gguf", "--llama-bench", "/no/such"), "there is no /no/such"),
        (("--against", "m.onnx", "--onnx-python", "/no/such"), "cannot run /no/such"),
        (("--against", "m.bin"), "give a .gguf file"),
    ],
)
def test_what_cannot_be_measured(kvc, fast, options, message):
    done = kvc("bench", fast, "-r", 1, *options)
    assert done.exit_code != 0
    assert message in done.output


def test_what_lies_in_the_folder_is_not_imported(fast, tmp_path):
    for name in ("numpy", "json", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    command = [KVC, "bench", fast, "-p", "2", "-n", "0", "-r", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "imported" in done.stderr) == (0, False), done.stderr


def test_the_bundle_that_fails_is_named_once(kvc, fast, tmp_path):
    done = kvc("bench", fast, "-p", 100, "-n", 0, "-r", 1)
    assert f"Error: {fast}: the prompt has 100 tokens" in done.stderr
    done = kvc("bench", tmp_path / "missing.kvc", "-r", 1)
    assert f"Error: cannot read {tmp_path}" in done.stderr


def test_a_peer_s_file_that_is_missing_is_told_first(kvc, fast):
    peer = ("--against", "no.gguf", "--llama-bench", "true")
    done = kvc("bench", fast, "-p", 2, "-n", 0, "-r", 1, *peer)
    assert (done.exit_code, "cannot read no.gguf" in done.stderr) == (1, True)
    assert "measuring" not in done.stderr


class Translator(torch.nn.Module):
    """An encoder that counts, and a decoder that knows how much it heard."""

    def __init__(self):
        super().__init__()
        self.register_buffer("heard", torch.zeros(1))

    def encode(self, tokens):
        self.heard.add_(tokens.shape[1])

    def prefill(self, tokens):
        return self.heard * torch.ones(tokens.shape[0], 8)

    def decode(self, token):
        return self.prefill(token)


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_a_bundle_with_an_encoder_is_refused(kvc, tmp_path, command):
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    roles = ("encode", "prefill", "decode")
    methods = [Method(name, (tokens,), role=name) for name in roles]
    path = tmp_path / "translator.kvc"
    compile_program(Translator(), methods, "cpu_fp32").save(path)
    done = kvc(command, path, "-p", 1, "-n", 1)
    assert done.exit_code == 1
    assert "bundle: expected one without an encoder" in done.stderr


def test_what_is_no_bundle(kvc, tmp_path, sample):
    done = kvc("bench", tmp_path / "missing.kvc", "-r", 1)
    assert (done.exit_code, "No such file" in done.output) == (1, True)
    done = kvc("bench", sample, "-r", 1)
    assert done.exit_code == 1
    assert "Traceback" not in done.output


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.kvc"
    methods = [Method("forward", (torch.ones(2, 4),))]
    compile_program(torch.nn.Linear(4, 3), methods).save(path)
    return path


def test_methods_without_roles_are_timed(kvc, plain):
    done = kvc("bench", plain, plain, "-r", 2, "--json")
    methods = json.loads(done.stdout)["methods"]
    assert [one["method"] for one in methods] == ["forward", "forward"]
    for one in methods:
        assert one["path"] == str(plain)
        assert one["recipe"] == "cpu_fp32"
        assert len(one["rounds"]) == 2
        spread = one["milliseconds"]
        assert 0 < spread["least"] <= spread["median"] <= spread["most"]
    table = kvc("bench", plain, "-r", 1).stdout.splitlines()
    assert table[0].split() == ["model", "recipe", "method", "ms"]
    assert table[1].split()[1:3] == ["cpu_fp32", "forward"]


def test_options_of_text_are_refused_for_methods_without_roles(kvc, plain, fast):
    done = kvc("bench", plain, "-p", 4)
    assert done.exit_code == 2
    assert "leave them out to time its methods" in " ".join(done.stderr.split())
    done = kvc("bench", plain, fast)
    assert done.exit_code == 2
    assert "measure them apart" in " ".join(done.stderr.split())
