"""`kvc batch`: all prompts of a file, and what happens where it is interrupted."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from adding_model import CAPACITY, write_chat
from click.testing import CliRunner

from kvc.compiler import Method, compile_program
from kvc.runtime import generate, load
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.serving.batch.job import by_size
from kvc.serving.batch.rows import Row
from kvc.tools.cli import main

KVC = Path(sys.executable).parent / "kvc"
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_chat(tmp_path_factory.mktemp("batch") / "adding.kvc")


@pytest.fixture
def run(bundle, tmp_path):
    """Run `kvc batch` on rows; return the exit code, stderr, and the output's lines."""

    def run(rows, *options, bundle=bundle):
        path = tmp_path / "in.jsonl"
        path.write_bytes(rows if isinstance(rows, bytes) else lines(rows))
        out = tmp_path / "out.jsonl"
        given = ["batch", path, "-o", out, "--bundle", bundle, *options]
        done = CliRunner().invoke(main, [str(one) for one in given])
        found = out.read_bytes().splitlines() if out.exists() else None
        read = None if found is None else [json.loads(line) for line in found]
        return done.exit_code, done.stderr, read

    return run


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def answer(bundle, prompt, **settings):
    with load(bundle) as program, program.session() as session:
        made = generate(session, prompt, **settings)
        return "".join(made.text()), made.reason, len(made.tokens)


def test_answers_are_those_of_single_prompts_in_the_order_of_the_lines(run, bundle):
    prompts = ["one", "twenty-two letters here", "x", "z" * 40]
    rows = [{"prompt": prompt, "id": f"row {prompt}"} for prompt in prompts]
    code, told, found = run(rows, "-n", 9)
    assert code == 0, told
    assert "4 rows; " in told
    for prompt, one in zip(prompts, found, strict=True):
        text, _, count = answer(bundle, prompt, max_tokens=9)
        assert one["id"] == f"row {prompt}"
        assert one["generated_text"] == text
        assert one["num_generated_tokens"] == count
        assert one["num_input_tokens"] == len(prompt)


def test_messages_are_rendered_by_the_chat_template(run, bundle):
    said = [{"role": "user", "content": "H\ni"}]  # as kvc serve joins parts
    with load(bundle) as program:
        template, tokenizer = chat_template_of(program), tokenizer_of(program)
        text = template.render([{"role": "system", "content": "Be"}, *said])
        tokens = list(tokenizer.encode(text, special=False))
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    rows = [
        {"messages": [{"role": "system", "content": "Be"}, *said]},
        {"messages": [{"role": "user", "content": parts}], "system": "Be"},
        {"prompt": tokens},
    ]
    code, told, found = run(rows, "-n", 5)
    assert code == 0, told
    assert len({one["generated_text"] for one in found}) == 1
    assert found[0]["generated_text"] == answer(bundle, tokens, max_tokens=5)[0]


def test_a_request_of_openais_gets_an_answer_in_its_form(run, bundle):
    body = {"model": "m", "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    url = "/v1/chat/completions"
    rows = [
        {
            "custom_id": "a",
            "method": "POST",
            "url": url,
            "body": body | {"messages": HI},
        },
        {
            "custom_id": "b",
            "url": "/v1/completions",
            "body": {"prompt": "x", "stop": "z"},
        },
        {"custom_id": "c", "url": "/v1/embeddings", "body": {}},
        {"custom_id": "d", "url": url, "body": {"messages": HI, "n": 2}},
    ]
    code, _, (chat, text, unknown, several) = run(rows, "-n", 6)
    assert code == 1
    assert (chat["custom_id"], chat["error"]) == ("a", None)
    answered = chat["response"]["body"]
    assert answered["object"] == "chat.completion"
    assert answered["model"] == "m"
    (choice,) = answered["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) == 4
    first = choice["logprobs"]["content"][0]
    assert first["token"] == choice["message"]["content"][0]
    assert first["token"] == first["top_logprobs"][0]["token"]
    assert len(first["top_logprobs"]) == 2
    assert answered["usage"]["completion_tokens"] == 4
    expected = answer(bundle, "x", max_tokens=6, stop_strings="z")[0]
    assert text["response"]["body"]["choices"][0]["text"] == expected
    for one, reason in ((unknown, "url: expected"), (several, "one answer")):
        assert one["response"]["status_code"] == 400
        assert reason in one["response"]["body"]["error"]["message"]
        assert reason in one["error"]["message"]


def test_a_bad_row_does_not_stop_the_others(run):
    rows = [
        b'{"prompt": "a"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "first", "id": "x"}',
        b'{"prompt": "a", "id": "x"}',
        json.dumps({"prompt": "y" * (CAPACITY + 1)}).encode(),
        b'{"prompt": "a", "sampling_params": {"temprature": 1}}',
        b'{"prompt": "a", "adapter": "none"}',
        b'{"prompt": ""}',
        b'{"prompt": [1, -1]}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        b'{"prompt": "last"}',
    ]
    code, told, found = run(b"\n".join(rows), "-n", 3)
    assert code == 1
    assert "11 rows, 9 failed" in told
    failed = {one["id"]: one["error"]["message"] for one in found if "error" in one}
    assert [one["id"] for one in found] == [1, 2, "x", "x", 5, 6, 7, 8, 9, 10, 11]
    assert len(found[2]["generated_text"]) == len(found[-1]["generated_text"]) == 3
    reasons = {
        1: "not JSON",
        2: "not UTF-8",
        "x": "an earlier line has the id",
        5: f"has {CAPACITY + 1} tokens, but the session has room for",
        6: "did you mean 'temperature'?",
        7: "no adapter 'none'",
        8: "at least one token",
        9: "got -1",
        10: "no pictures",
    }
    assert failed.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in failed[name], name


def test_why_an_answer_ended_is_told(run):
    rows = [
        {"prompt": "a", "sampling_params": {"max_tokens": 2}},
        {"prompt": "a" * (CAPACITY - 2), "sampling_params": {"ignore_eos": True}},
        {"prompt": "a", "sampling_params": {"stop": [chr(c) for c in range(33, 123)]}},
        {"prompt": "a", "sampling_params": {"stop_token_ids": [*range(33, 123)]}},
    ]
    _, _, found = run(rows)
    reasons = [one["finish_reason"] for one in found]
    assert reasons == ["length", "length", "stop", "stop"]


def test_log_probabilities_of_a_row_name_tokens(run):
    _, _, (one,) = run([{"prompt": "a", "sampling_params": {"logprobs": 1}}], "-n", 2)
    assert [len(token["top"]) for token in one["logprobs"]] == [1, 1]
    texts = "".join(token["text"] for token in one["logprobs"])
    assert texts == one["generated_text"]


def test_a_row_samples_as_it_does_alone(run, bundle):
    rows = [{"prompt": "ab"}, {"prompt": "ab"}, {"prompt": "ab"}]
    options = ("-n", 12, "--temperature", 30, "--seed", 4)
    _, _, found = run(rows, *options)
    texts = [one["generated_text"] for one in found]
    told = {"max_tokens": 12, "temperature": 30}
    assert texts == [answer(bundle, "ab", seed=4 + n, **told)[0] for n in range(3)]
    assert len(set(texts)) == 3


def test_an_empty_file_has_an_empty_output(run):
    assert run(b"\n \n")[::2] == (0, [])


def test_what_exists_is_not_replaced_unless_told(run, tmp_path):
    (tmp_path / "out.jsonl").write_bytes(b'"mine"\n')
    code, told, found = run([{"prompt": "a"}], "-n", 2)
    assert (code, found) == (2, ["mine"])
    assert "--force replaces it" in told
    code, _, found = run([{"prompt": "a"}], "-n", 2, "--force")
    assert (code, len(found)) == (0, 1)


def test_a_finished_batch_is_not_done_again(run, tmp_path):
    rows = [{"prompt": "a"}, {"prompt": ""}]
    code, _, found = run(rows, "-n", 2)
    again, told, same = run(rows, "-n", 2, "--resume")
    assert (again, same) == (code, found)
    assert "has all answers" in told
    code, told, same = run([*rows, {"prompt": "b"}], "-n", 2, "--resume")
    assert (code, same) == (2, found)
    assert "no journal to go on from" in told


def test_the_prompts_are_not_replaced_by_the_answers(kvc, bundle, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines([{"prompt": "a"}]))
    done = kvc("batch", path, "-o", path, "--bundle", bundle, "--force")
    assert done.exit_code == 2
    assert "is the file of the prompts" in done.stderr
    assert path.read_bytes() == lines([{"prompt": "a"}])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-o", "no/out.jsonl"), "there is no folder"),
        (("-o", "out.jsonl", "--resume", "--force"), "give one"),
        (("-o", "-", "--resume"), "--resume needs a file"),
        (("-o", "out.jsonl", "--temperature", "-1"), "--temperature"),
        (("-o", "out.jsonl", "--max-ram", "much"), "--max-ram"),
        (("-o", "out.jsonl", "--capacity", "999999"), "capacity"),
    ],
)
def test_what_cannot_begin_is_exit_code_2(
    kvc, bundle, tmp_path, monkeypatch, options, reason
):
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(lines([{"prompt": "a"}]))
    done = kvc("batch", "in.jsonl", "--bundle", bundle, *options)
    assert done.exit_code == 2, done.stderr
    assert reason in done.stderr
    assert not Path("out.jsonl").exists()


def test_a_bundle_that_cannot_generate_is_told_before_any_row(run, tmp_path):
    other = tmp_path / "other.kvc"
    method = Method("forward", args=(torch.ones(1, 2),))
    compile_program(torch.nn.Linear(2, 2), [method], "fp32").save(other)
    code, told, found = run([{"prompt": "a"}], bundle=other)
    assert (code, found) == (2, None)
    assert "no method of the role 'prefill'" in told


def test_prompts_come_from_stdin_and_answers_go_to_stdout_in_order(bundle):
    rows = [
        {"prompt": "a" * n, "sampling_params": {"max_tokens": n}} for n in (9, 1, 4)
    ]
    command = [KVC, "batch", "-", "-o", "-", "--bundle", bundle, "--quiet"]
    done = subprocess.run(command, input=lines(rows), capture_output=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in found] == [1, 2, 3]
    assert [one["num_generated_tokens"] for one in found] == [9, 1, 4]
    assert done.stderr == b""


def test_answers_to_stdout_come_before_the_input_ends(bundle):
    command = [KVC, "batch", "-", "-o", "-", "--bundle", bundle, "-n", "2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as running:
        for _ in range(600):  # more than are read ahead
            running.stdin.write(lines([{"prompt": "a"}]))
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["id"] == 1
        running.stdin.close()
        assert len(running.stdout.readlines()) == 599
    assert running.returncode == 0


# Runs that are interrupted


SLOW = [{"prompt": f"row {n}"} for n in range(60)]


def begin(bundle, folder, *options):
    command = [KVC, "batch", "in.jsonl", "-o", "out.jsonl", "--bundle", bundle]
    command += ["--max-rows", "2", "-n", "90", *options]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE)


def wait_for(journal, count):
    for _ in range(3000):
        if journal.exists() and journal.read_bytes().count(b"\n") > count:
            return
        time.sleep(0.01)
    raise AssertionError("no answers")


@pytest.mark.parametrize(
    "sent",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)],
)
def test_a_run_that_is_interrupted_goes_on_to_the_same_bytes(bundle, tmp_path, sent):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
        (folder / "in.jsonl").write_bytes(lines(SLOW))
    begin(bundle, whole).communicate()
    journal = halves / "out.jsonl.journal"
    running = begin(bundle, halves)
    wait_for(journal, 3)
    running.send_signal(sent)
    told = running.communicate()[1].decode()
    assert running.returncode == (-9 if sent == signal.SIGKILL else 130)
    assert ("--resume goes on" in told) == (sent == signal.SIGINT)
    kept = journal.read_bytes()
    assert 3 < kept.count(b"\n") < 60
    assert not (halves / "out.jsonl").exists()
    journal.write_bytes(kept[:-3])  # as if the last write had been torn
    running = begin(bundle, halves)
    assert "an earlier run has left it" in running.communicate()[1].decode()
    running = begin(bundle, halves, "--resume")
    told, stay = running.communicate()[1].decode(), kept.count(b"\n") - 2
    assert f"{stay} row" in told
    assert "done before stay" in told
    assert running.returncode == 0
    assert (halves / "out.jsonl").read_bytes() == (whole / "out.jsonl").read_bytes()
    assert sorted(one.name for one in halves.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.fixture
def stopped(run, tmp_path, monkeypatch):
    """Leave a journal of three rows, whose output could not be written."""
    from kvc.schema.container.temporary import AtomicFile
    from kvc.schema.errors import CannotWrite

    def full(self, content):
        raise CannotWrite(path=self.path, reason="No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AtomicFile, "write", full)
        code, told, found = run([{"prompt": p} for p in "abc"], "-n", 3)
    assert (code, found) == (2, None)
    assert "No space left on device" in told
    journal = tmp_path / "out.jsonl.journal"
    assert journal.read_bytes().count(b"\n") == 4
    return journal


def test_a_disk_that_is_full_at_the_end_loses_no_answer(run, stopped):
    code, told, found = run([{"prompt": p} for p in "abc"], "-n", 3, "--resume")
    assert (code, len(found)) == (0, 3)
    assert "3 rows done before stay" in told
    assert " 0 tokens in" in told
    assert not stopped.exists()


@pytest.mark.parametrize(
    ("prompts", "options", "what"),
    [("abc", ("-n", 4), "other settings"), ("abd", ("-n", 3), "another input")],
)
def test_another_batch_does_not_go_on_unless_told(run, stopped, prompts, options, what):
    rows = [{"prompt": p} for p in prompts]
    code, told, found = run(rows, *options, "--resume")
    assert (code, found) == (2, None)
    assert f"the journal of a batch with {what}: it began" in told
    code, told, found = run(rows, *options, "--resume-anyway")
    assert (code, len(found)) == (0, 3)


def test_only_lines_that_have_changed_are_done_again(run, stopped):
    rows = [{"prompt": "a"}, {"prompt": "new", "sampling_params": {"max_tokens": 5}}]
    _, _, found = run(rows, "-n", 9, "--resume-anyway")
    assert [one["num_generated_tokens"] for one in found] == [3, 5]


def test_another_bundle_does_not_go_on(run, stopped, tmp_path):
    other = write_chat(tmp_path / "other.kvc", max_new_tokens=7)
    rows = [{"prompt": p} for p in "abc"]
    code, told, _ = run(rows, "-n", 3, "--resume", bundle=other)
    assert code == 2
    assert "another bundle" in told


def test_resume_without_a_journal_begins(run):
    assert run([{"prompt": "a"}], "-n", 1, "--resume")[0] == 0


def test_rows_of_similar_size_follow_each_other_in_bounded_blocks():
    rows = [Row(n, 0, n, size=n * 7919 % 1200) for n in range(1200)]
    read = iter(rows)
    sizes = [row.size for row in by_size(read)]
    assert sorted(sizes) == sorted(row.size for row in rows)
    assert sizes[:512] == sorted(sizes[:512], reverse=True)
    assert sizes[512:1024] == sorted(sizes[512:1024])
    next(by_size(again := iter(rows)))
    assert next(again).number == 512
