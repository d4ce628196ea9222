"""The load generator for servers: what it asks, what it counts, what it concludes."""

import asyncio
import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from chat_server import ChatServer, Reply, delta, event, stream

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Let benchmarks be imported."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture(scope="module")
def server():
    with ChatServer() as server:
        yield server


@pytest.fixture
def desk(server):
    server.desk.__init__()
    return server.desk


@pytest.fixture
def place(server):
    from serving_client import Place

    return Place("127.0.0.1", int(server.url.rsplit(":", 1)[1].strip("/")))


def answer(begun, pieces, tokens, **parts):
    from serving_client import Answered

    return Answered(begun, pieces, prompt=100, tokens=tokens, **parts)


def test_figures_of_three_answers_are_those_worked_out_by_hand():
    from serving_figures import Took, figures_of

    answers = [
        answer(10.0, [11.0, 11.5, 12.0, 12.5], 4),
        answer(10.0, [10.2, 10.3, 13.3], 3, reused=50),
        answer(10.5, [], 0, failure="status 500: no"),
        answer(10.5, [10.9, 11.9], 5),
    ]
    found = figures_of(answers, 2, 4, Took(3.0, 0.5, 0.2, 1e6))
    assert (found.requests, found.failures, found.short) == (4, 1, 1)
    assert found.tokens == 12
    assert found.seconds == pytest.approx(3.3)
    assert found.tokens_per_s == pytest.approx(12 / 3.3)
    assert found.one_per_s == pytest.approx(2.0)  # of 2, 2 / 3.1 and 4
    assert found.first_s == pytest.approx(0.4)
    assert found.first_95_s == pytest.approx(1.0)
    assert found.gap_s == pytest.approx(0.5)  # of 0.5, 0.5, 0.5, 0.1, 3 and 1
    assert found.worst_gap_s == pytest.approx(3.0)
    assert found.reused == pytest.approx(50 / 300)
    assert (found.server_s, found.client_s, found.others_s) == (3.0, 0.5, 0.2)
    assert found.peak_nbytes == 1e6
    assert found.why == ("status 500: no",)


def test_a_load_that_failed_has_no_speed():
    from serving_figures import Took, figures_of, row_of

    failed = answer(1.0, [], 0, failure="refused")
    found = figures_of([failed, failed], 2, 4, Took())
    assert math.isnan(found.tokens_per_s)
    assert (found.failures, found.why) == (2, ("refused",))
    assert row_of([found, found])[:2] == ["-", "-"]
    assert row_of([found, found])[-2:] == ["4", "0"]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        (range(1, 101), 0.95, 95),
        (range(1, 21), 0.95, 19),
        ([3, 1, 2], 0.95, 3),
        ([7], 0.5, 7),
    ],
)
def test_a_percentile_is_a_value_that_so_many_keep(values, share, expected):
    from serving_figures import percentile

    assert percentile(values, share) == expected


def test_ratios_are_of_the_same_rounds():
    from serving_figures import Ratio, ratio

    assert ratio([2, 9, 4], [1, 3, 4]) == Ratio(2, 1, 3)


def rounds_of(*speeds):
    """Return what rounds told, of speeds of one client and of the bare model."""
    from serving_figures import Took, figures_of

    told = []
    for served, alone in speeds:
        one = answer(0.0, [1.0, 2.0], served + 1)
        loads = {"1": figures_of([one], 1, 4, Took(1.0, 1.0, 1.0, 1e6))}
        told.append({"loads": loads, "alone_per_s": alone})
    return told


def test_rounds_in_which_llama_server_is_slow_are_void():
    from serving_one import one_report
    from serving_reports import load_report

    kvc = rounds_of((20, 25), (30, 30), (30, 100))
    found = {"kvc": kvc, "llama-server": rounds_of((10, 10), (79, 100), (8, 7))}
    assert "VOID: round 2 of 3." in one_report(found)
    # Of the answers' tokens in 2 seconds: 21 / 11 and 31 / 9.
    assert "kvc / llama-server: tokens/s 2.68 (1.91 to 3.44)" in load_report(found)
    found["llama-server"] = rounds_of((7, 10), (7, 10), (13, 10))
    assert "VOID: round 1, 2, 3 of 3." in one_report(found)
    assert "no round can be compared" in load_report(found)
    assert "VOID" not in one_report({"kvc": kvc})
    assert "Unchecked" not in load_report(found)
    bare = {name: [{"loads": one["loads"]} for one in found[name]] for name in found}
    assert "Unchecked" in load_report(bare)


def test_words_are_counted_as_the_server_counts_them():
    from serving_prompts import counting, text

    found = counting((40, 70), (140, 180))
    assert (found.base, found.each) == (pytest.approx(26), pytest.approx(1.1))
    assert found.words(2000) == round((2000 - 26) / 1.1)
    assert found.words(1) == 1
    assert text(20, "a") == text(20, "a")
    starts = {text(20, f"client {i}")[:20] for i in range(200)}
    assert len(starts) > 190


def test_a_command_of_a_process_is_watched():
    from serving_processes import busy_seconds, peak_nbytes, processor_seconds

    before = busy_seconds()

    work = (
        "import time; kept = bytearray(50_000_000); end = time.process_time() + 0.3\n"
    )
    work += (
        "while time.process_time() < end: pass\nprint('worked', flush=True); input()"
    )
    shell = ["sh", "-c", '"$0" "$@"; true', sys.executable, "-c", work]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(shell, **pipes) as process:
        process.stdout.readline()
        assert 0.3 <= processor_seconds(process.pid) < 3
        assert busy_seconds() - before >= 0.25
        assert 50e6 < peak_nbytes(process.pid) < 150e6
        process.communicate(b"\n")
    assert processor_seconds(os.getpid()) > 0


@pytest.mark.parametrize("size", [1, 10_000])
def test_an_answer_is_read_however_it_is_cut(place, desk, size):
    from serving_client import CHAT, ask

    chunks = [
        delta(role="assistant", content=""),
        delta(content="Grüße"),
        delta(content="!"),
    ]
    whole = stream(chunks)
    desk.replies.append(
        Reply([whole[i : i + size] for i in range(0, len(whole), size)])
    )
    found = asyncio.run(ask(place, CHAT, {"messages": []}))
    assert (found.text, found.failure, len(found.pieces)) == ("Grüße!", "", 2)
    assert (found.prompt, found.tokens) == (12, 34)
    assert found.begun < found.pieces[0] <= found.pieces[1]


def test_failures_are_told_by_the_servers_sentence(place, desk):
    from serving_client import CHAT, Place, ask

    late = [event(delta(content="a")), event({"error": {"message": "Out of memory."}})]
    refused = [b'{"error": {"message": "Too many wait."}}']
    desk.replies += [Reply(refused, 503), Reply(late), Reply([event({"choices": []})])]
    found = [asyncio.run(ask(place, CHAT, {})).failure for _ in range(3)]
    told = ["status 503: Too many wait.", "Out of memory.", "the answer has no text"]
    assert found == told
    desk.replies.append(Reply(late, hold=threading.Event()))
    short = replace(place, seconds=0.2)
    assert asyncio.run(ask(short, CHAT, {})).failure == "not ended after 0.2 s"
    nobody = Place("127.0.0.1", 1)
    assert "ConnectionRefused" in asyncio.run(ask(nobody, CHAT, {})).failure


def test_a_server_that_runs_already_is_measured(server, desk):
    command = [sys.executable, str(BENCHMARKS / "serving.py"), "--url", server.url]
    command += ["--clients", "2", "3", "--requests", "2", "--rounds", "1", "--json"]
    command += ["--pid", str(os.getpid()), "--answer", "34", "--shared", "5"]
    desk.replies += [
        Reply([stream([delta(content="x")]).replace(b": 12", count)])
        for count in (b": 50", b": 160")
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ((told,),) = json.loads(done.stdout).values()
    loads = told["loads"]
    assert [loads[n]["requests"] for n in ("2", "3")] == [4, 6]
    assert all(one["failures"] == one["short"] == 0 for one in loads.values())
    assert all(one["server_s"] >= 0 < one["client_s"] for one in loads.values())
    prompts = [one["messages"][-1]["content"] for one in desk.asked[2:]]
    assert len(set(prompts)) == 10
    assert {len(one.split()) for one in prompts} == {round((128 - 6) / 1.1)}
    shared = {one["messages"][0]["content"] for one in desk.asked[2:]}
    assert [len(one.split()) for one in shared] == [round(5 / 1.1)]


def test_two_turns_are_one_talk(server, desk):
    command = [sys.executable, str(BENCHMARKS / "serving.py"), "--url", server.url]
    desk.replies += [
        Reply([stream([delta(content="x")]).replace(b": 12", count)])
        for count in (b": 50", b": 160")
    ]
    done = subprocess.run(
        [*command, "--turns", "--rounds", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = (one["messages"] for one in desk.asked[2:])
    assert second[:2] == [*first, {"role": "assistant", "content": "As you like."}]
    assert [one["role"] for one in second] == ["user", "assistant", "user"]
    assert len(first[0]["content"].split()) == round((2000 - 6) / 1.1)
    assert "round 1" in done.stdout
