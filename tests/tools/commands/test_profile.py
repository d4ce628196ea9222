"""`kvc profile`: what the steps of a call take, and a trace of them."""

import json

import pytest
import torch
from tiny_decoder import factory
from torch import nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.runtime import Span, load
from kvc.tools.bench.method_tests import MethodTest, method_tests
from kvc.tools.bench.plan import SpeedTest
from kvc.tools.bench.profiling import (
    OUTSIDE,
    Call,
    Profile,
    by_line,
    by_module,
    overhead_of,
    profile,
    rows_of,
)


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "fast.kvc"
    spec = factory()
    compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states).save(path)
    return path


def span(op, began, ended, source="", backend=""):
    return Span("decode", op, backend, source, began, ended)


def test_steps_inside_others_do_not_count_twice():
    spans = (
        span("a", 2_000_000, 4_000_000),
        span("b", 4_000_000, 5_000_000),
        span("loop", 1_000_000, 6_000_000),
        span("a", 6_000_000, 7_000_000),
    )
    rows = {row.what: row for row in rows_of([Call(0, 8_000_000, spans)], by_op)}
    assert {what: row.milliseconds for what, row in rows.items()} == {
        "a": 3,
        "b": 1,
        "loop": 2,
        OUTSIDE: 2,
    }
    assert rows["a"].count == 2
    assert sum(row.share for row in rows.values()) == pytest.approx(1)


def by_op(found):
    return found.op


def test_modules_that_differ_in_numbers_are_one_row():
    spans = tuple(
        span("mm", n, n + 1, f"model:7 (layers.{n}.ffn)", "cpu") for n in range(3)
    )
    modules = rows_of([Call(0, 3, spans)], by_module)
    assert modules[0].what == "layers.{0..2}.ffn"
    assert (modules[0].count, modules[0].backends) == (3, ("cpu",))
    assert rows_of([Call(0, 3, spans)], by_line)[0].what == "model:7"
    bare = [Call(0, 1, (span("a", 0, 1, "model:7"),))]
    assert rows_of(bare, by_module)[0].what == "(no module)"
    assert rows_of([Call(0, 1, (span("a", 0, 1),))], by_line)[0].what == "(no source)"


def test_a_call_is_taken_apart(kvc, fast):
    done = kvc("profile", fast, "-p", 5, "-n", 3, "-d", 2, "-r", 2, "--json")
    assert done.exit_code == 0, done.output
    prompt, steps = json.loads(done.stdout)["tests"]
    assert (prompt["test"], prompt["calls"]) == ("pp5 @ d2", 2)
    assert (steps["test"], steps["calls"]) == ("tg3 @ d2", 3)
    for test in (prompt, steps):
        assert -1 < test["overhead"] < 20
        assert sum(row["share"] for row in test["rows"]) == pytest.approx(1)
        rows = {row["what"]: row for row in test["rows"]}
        assert rows["kvc::attention"]["count"] == 1
        assert rows["kvc::attention"]["backends"] == ["cpu"]
        assert rows[OUTSIDE]["milliseconds"] > 0
    text = kvc("profile", fast, "-p", 0, "-n", 2, "--by", "line").stdout
    assert text.startswith("tg2: 2 calls; ")
    assert "kvc.compiler.models.decoder:" in text


@pytest.mark.parametrize("test", [SpeedTest(4, 0, 2), SpeedTest(0, 5, 2)])
def test_each_call_is_made_with_and_without_recording(fast, test):
    with load(fast) as program:
        found = profile(program, test, 3)
    assert len(found.plain) == len(found.calls) == (3 if test.prompt else 5)
    assert all(call.spans for call in found.calls)
    assert not any(call.spans for call in found.plain)
    first = [
        plain.began < recorded.began
        for plain, recorded in zip(found.plain, found.calls, strict=True)
    ]
    assert first == [number % 2 == 0 for number in range(len(first))]


def test_what_recording_adds_is_the_median_of_pairs():
    plain = tuple(Call(0, took) for took in (100, 1000, 10))
    calls = tuple(Call(0, took) for took in (103, 5000, 10))
    assert overhead_of(Profile(SpeedTest(0, 3, 0), plain, calls)) == pytest.approx(0.03)


def test_a_trace_has_every_step(kvc, fast, tmp_path):
    path = tmp_path / "trace.json"
    done = kvc("profile", fast, "-p", 0, "-n", 2, "--trace", path)
    assert done.exit_code == 0, done.output
    events = json.loads(path.read_text())["traceEvents"]
    calls = [event for event in events if event["cat"] == "call"]
    assert [call["name"] for call in calls] == ["tg2, call 0", "tg2, call 1"]
    steps = [event for event in events if event["cat"] == "cpu"]
    assert len(steps) % 2 == 0
    assert len(steps) > 20
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
    first, *_ = calls
    inside = [e for e in steps if first["ts"] <= e["ts"] < first["ts"] + first["dur"]]
    assert len(inside) == len(steps) // 2
    assert all(event["args"]["method"] == "decode" for event in steps)


def test_a_trace_replaces_traces_alone(kvc, fast, tmp_path):
    path = tmp_path / "trace.json"
    for there in (
        fast.read_bytes(),
        b'{"traceEvents": [{"name": "of another"}]}',
        b"{",
    ):
        path.write_bytes(there)
        done = kvc("profile", fast, "-p", 1, "-n", 0, "--trace", path)
        assert done.exit_code == 1
        assert "another file is there" in done.stderr
        assert path.read_bytes() == there
    path.write_bytes(b"")
    for tokens in (1, 2):
        done = kvc("profile", fast, "-p", tokens, "-n", 0, "--trace", path)
        assert done.exit_code == 0, done.output
        assert f"pp{tokens}" in path.read_text()


def test_the_mean_that_rows_add_up_to_stands_above_them(kvc, fast):
    text = kvc("profile", fast, "-p", 0, "-n", 3).stdout
    title, _, *rows = text.splitlines()
    mean = float(title.removesuffix(" ms").rpartition(" ")[2])
    assert sum(float(row.split()[0]) for row in rows) == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-p", 0, "-n", 0), "nothing to run"),
        (("-p", 100), "the prompt has 100 tokens"),
        (("--trace", "no/such/folder/t.json"), "no/such/folder does not exist"),
    ],
)
def test_what_cannot_be_profiled(kvc, fast, options, message):
    done = kvc("profile", fast, *options)
    assert done.exit_code != 0
    assert message in done.output


def test_calls_that_nobody_asked_for_fit_into_a_session(kvc, fast):
    done = kvc("profile", fast, "-r", 1, "--json")
    assert done.exit_code == 0, done.output
    assert [one["test"] for one in json.loads(done.stdout)["tests"]] == ["pp24", "tg24"]


class Plain(nn.Module):
    """Generates no text: encodes rows of tokens, and keeps sums in a state."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.register_buffer("total", torch.zeros(2, 4))

    def encode(self, tokens, mask):
        found = self.table(tokens) * mask[..., None]
        return torch.softmax(found, -1).sum(1)

    def add(self, rows):
        self.total.add_(rows)
        return self.total * 2


BATCH, SEQ = Dim("batch", 2, 64), Dim("seq", 1, 100)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    tokens = torch.ones(2, 5, dtype=torch.int64)
    sizes = {0: BATCH, 1: SEQ}
    methods = [
        Method(
            "encode", (tokens, tokens > 0), dynamic={"tokens": sizes, "mask": sizes}
        ),
        Method("add", (torch.ones(2, 4),), dynamic={"rows": {0: BATCH}}),
    ]
    states = [StateSpec("total", axis=0, capacity=BATCH)]
    path = tmp_path_factory.mktemp("plain") / "plain.kvc"
    compile_program(Plain(), methods, states=states).save(path)
    return path


def test_methods_without_roles_are_called_at_usual_sizes(kvc, plain):
    done = kvc("profile", plain, "-r", 2, "--json")
    assert done.exit_code == 0, done.output
    encode, add = json.loads(done.stdout)["tests"]
    assert encode["test"] == "encode at batch=2, seq=100"
    assert (encode["method"], encode["sizes"]) == ("encode", {"batch": 2, "seq": 100})
    assert (add["test"], add["sizes"]) == ("add at batch=2", {"batch": 2})
    for one in (encode, add):
        assert (one["calls"], one["prompt"], one["steps"], one["depth"]) == (2, 0, 0, 0)
        assert sum(row["share"] for row in one["rows"]) == pytest.approx(1)
    rows = {row["what"]: row for row in encode["rows"]}
    assert rows["aten::embedding"]["backends"] == ["cpu"]


def test_sizes_of_arguments_can_be_chosen(kvc, plain, tmp_path):
    path = tmp_path / "trace.json"
    done = kvc("profile", plain, "--at", "batch=3,seq=1", "--trace", path)
    assert done.exit_code == 0, done.output
    titles = [line for line in done.stdout.splitlines() if ": 3 calls; " in line]
    assert [title.partition(":")[0] for title in titles] == [
        "encode at batch=3, seq=1",
        "add at batch=3, seq=1",
    ]
    events = json.loads(path.read_text())["traceEvents"]
    assert {
        event["args"]["method"] for event in events if "method" in event["args"]
    } == {
        "encode",
        "add",
    }


def test_a_method_without_sizes_is_named_alone(kvc, tmp_path):
    methods = [Method("forward", (torch.ones(2, 4),))]
    compile_program(nn.Linear(4, 2), methods).save(tmp_path / "a.kvc")
    text = kvc("profile", tmp_path / "a.kvc").stdout
    assert text.startswith("forward: 3 calls; median ")
    assert "aten::linear" in text


class Cached(nn.Module):
    """Reads a cache, of which no session has less than its greatest size by default."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 8, 4))

    def forward(self, rows, weights):
        self.kept[:, :2] = rows
        return (self.kept * weights[..., None]).sum(1)


def test_sizes_of_states_are_those_of_a_session(kvc, tmp_path):
    room = Dim("room", 4, 300)
    given = torch.ones(1, 2, 4), torch.ones(1, 8)
    methods = [Method("forward", given, dynamic={"weights": {1: room}})]
    states = [StateSpec("kept", axis=1, capacity=room)]
    compile_program(Cached(), methods, states=states).save(tmp_path / "a.kvc")
    with load(tmp_path / "a.kvc") as program:
        assert method_tests(program, {}) == (MethodTest("forward", {"room": 300}),)
    done = kvc("profile", tmp_path / "a.kvc", "--at", "room=9")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("forward at room=9: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-p", 4), "-p, -n and -d are of bundles that generate text alone"),
        (("-d", 1), "-p, -n and -d are of bundles that generate text alone"),
        (("--at", "width=4"), "no size 'width'"),
        (("--at", "seq=101"), "1..100"),
        (("--at", "seq"), "expected NAME=N"),
    ],
)
def test_what_no_method_can_be_called_with(kvc, plain, options, message):
    done = kvc("profile", plain, *options)
    assert done.exit_code != 0
    assert message in done.output


def test_a_prompt_is_sized_by_its_own_options(kvc, fast):
    done = kvc("profile", fast, "--at", "seq=4")
    assert done.exit_code == 2
    assert "--at is of bundles that generate no text" in done.output
