"""`kvc serve` as a process: what it prints, its options, and how it ends."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner
from running_servers import wait_for

from kvc.tools.cli import main

KVC = Path(sys.executable).parent / "kvc"
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"model": "chat", "messages": HELLO, "temperature": 0}
LONG = {"logit_bias": {"1": -100}, "max_tokens": 900}


@contextmanager
def serving(*arguments):
    """Run `kvc serve`; the process, what it printed, and a client."""
    command = [KVC, "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        told = []
        logged = []
        reader = threading.Thread(target=lambda: logged.extend(process.stderr))
        reader.start()
        try:
            for line in process.stdout:
                told.append(line.strip())
                if line.startswith("http://"):
                    break
            assert told, logged
            assert told[-1].startswith("http://"), told
            url = f"{told[-1]}/v1"
            client = openai.OpenAI(base_url=url, api_key="key", max_retries=0)
            with client:
                yield process, told, client, logged
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            reader.join()


def test_models_are_served_by_name_until_a_signal(
    chat_bundle, embedding_bundle, tmp_path
):
    keys, own = tmp_path / "keys", tmp_path / "own.kvc"
    keys.write_text("other\n\nkey\n")
    shutil.copy(chat_bundle, own)
    adapter = f"chat:poet={chat_bundle.parent / 'poet.kva'},scale=0.5"
    arguments = [f"chat={own}", embedding_bundle, "--adapter", adapter]
    arguments += ["--api-key-file", keys, "--max-rows", 2, "--drain", 0.2]
    with serving(*arguments) as (process, told, client, logged):
        assert told[0].startswith("chat: answers with text; weights ")
        assert "2 rows; adapters poet" in told[0]
        assert told[1].startswith("embed: embeds texts; weights ")
        names = [one.id for one in client.models.list()]
        assert names == ["chat", "chat:poet", "embed"]
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="no").models.list()
        stream = client.chat.completions.create(stream=True, **GREEDY, **LONG)
        assert next(stream).choices[0].delta.role == "assistant"
        process.send_signal(signal.SIGTERM)
        assert list(stream)[-1].choices[0].finish_reason == "length"
        assert process.wait(20) == 0
    assert any("POST /v1/chat/completions 200" in line for line in logged)
    assert not [line for line in logged if "Traceback" in line or str(own) in line]


def test_a_second_signal_ends_it_at_once(chat_bundle):
    with serving(f"chat={chat_bundle}", "--drain", 100) as (process, _, client, logged):
        given = {**GREEDY, **LONG, "n": 100}  # they do not end before the signal
        stream = client.chat.completions.create(stream=True, **given)
        next(stream)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: refuses(client))
        wait_for(lambda: any("at most 100 s for 100 answers;" in one for one in logged))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT


def refuses(client):
    try:
        client.models.list()
    except (openai.APIConnectionError, openai.InternalServerError):
        return True
    return False


def test_a_bundle_that_is_replaced_is_told(chat_bundle, tmp_path):
    own = tmp_path / "own.kvc"
    shutil.copy(chat_bundle, own)
    with serving(f"chat={own}") as (process, _, client, logged):
        client.chat.completions.create(max_tokens=2, **GREEDY)
        own.write_bytes(own.read_bytes() + b"\0")
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(stream=stream, max_tokens=2, **GREEDY)
            assert caught.value.status_code == 503
            assert "own.kvc changed while it was in use" in caught.value.message
            assert str(tmp_path) not in caught.value.message
        assert client.models.list().data
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not [line for line in logged if str(tmp_path) in line]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["a=x.kvc", "a=y.kvc"], "a is the name of two models"),
        (["a b=x.kvc"], "a name of letters, digits"),
        (["x.kvc", "--adapter", "poet"], "expected [MODEL:]NAME=FILE"),
        (["x.kvc", "--adapter", "y:poet=p.kva"], "MODEL:NAME=FILE"),
        (["x.kvc", "y.kvc", "--adapter", "poet=p.kva"], "one of x, y"),
        (["x.kvc", "--adapter", "p=p.kva", "--adapter", "p=q.kva"], "two adapters"),
        (["x.kvc", "--adapter", "p=p.kva,scale=x"], "a number after scale="),
        (["x.kvc", "--max-body", "much"], "expected bytes"),
        (["x.kvc", "--port", "70000"], "--port"),
        (["x.kvc", "--api-key-file", "nowhere"], "nowhere"),
        (["nowhere.kvc", "--port", "0"], "nowhere.kvc"),
        (["x.kvc", "--host", "no.such.host.invalid"], "an address that can be bound"),
    ],
)
def test_options_that_are_impossible_are_refused(arguments, said, tmp_path):
    done = CliRunner().invoke(main, ["serve", *arguments])
    assert done.exit_code != 0
    assert said in done.output


def test_an_address_in_use_is_told(chat_bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["serve", str(chat_bundle), "--port", port])
    assert done.exit_code == 1
    assert "in use; --port takes another one" in done.output
