"""Clients that break off, write nonsense, or never finish; bundles that change."""

import asyncio
import json
import shutil
import socket
import threading

import openai
import pytest
from daily import RARELY
from running_servers import limits, running, wait_for

from kvc.serving.scheduling import Limits

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"model": "chat", "messages": HELLO, "temperature": 0}
LONG = {"logit_bias": {"1": -100}, "max_tokens": 900}  # it never ends by itself


def status(server):
    return server.service.catalog.models["chat"].scheduler.status


def is_well(server):
    """Whether the server still answers."""
    with server.client() as client:
        made = client.chat.completions.create(max_tokens=2, **GREEDY)
    return made.usage.completion_tokens == 2 and server.ask("GET", "/health").status


def test_a_client_that_leaves_a_stream_cancels_its_answer(server, client):
    before = status(server).cancelled
    with client.chat.completions.create(stream=True, **GREEDY, **LONG) as stream:
        next(iter(stream))
        assert status(server).running == 1
    wait_for(lambda: status(server).cancelled == before + 1)
    wait_for(lambda: status(server).running == 0)
    assert is_well(server)


def test_a_client_that_does_not_wait_cancels_its_answer(server):
    before = status(server).cancelled
    body = json.dumps({**GREEDY, **LONG}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with server.connect() as connection:
        connection.sendall(head.encode() + body)
        wait_for(lambda: status(server).running == 1)
    wait_for(lambda: status(server).cancelled == before + 1)
    wait_for(lambda: status(server).running == 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_are_refused(server, raw):
    with server.connect() as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        while connection.recv(4096):
            pass
    assert is_well(server)


def test_a_request_of_two_lengths_is_refused_with_what_follows(server):
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"both Content-Length and Transfer-Encoding" in answer
    assert is_well(server)


def test_half_a_request_ends_with_its_time(chat_bundle):
    with running({"chat": chat_bundle}, limits(reading=0.3, idle=1)) as server:
        for half in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"):
            with server.connect() as connection:
                connection.sendall(half)
                assert connection.recv(100) == b""
        with server.connect() as connection:
            request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(request + b"GET /he")  # the second never ends
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            while connection.recv(4096):
                pass
        with server.connect() as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 408 ")
        assert is_well(server)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_reads_nothing_is_dropped(chat_bundle, stream):
    asked = {"model": "chat", "prompt": "a", "n": 16, "logprobs": 20, **LONG}
    body = json.dumps({**asked, "max_tokens": 400, "stream": stream}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with (
        running({"chat": chat_bundle}, limits(reading=0.3, idle=1)) as server,
        socket.socket() as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(head.encode() + body)
        wait_for(lambda: server.server.server_state.connections)
        wait_for(lambda: not server.server.server_state.connections, 25)
        wait_for(lambda: status(server).running == 0)
        assert is_well(server)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "line 1, column 2"),
        (b"[]", "a JSON object"),
        (b"\xff{}", "UTF-8"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": "\\ud800"}', "UTF-8"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 100_000, "too deep"),
        (b"[" + b"1," * 1_100_000 + b"1]", "commas"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", "64 levels"),
    ],
)
def test_bodies_that_are_no_requests_are_refused(server, body, said):
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        answer = server.post(path, body)
        assert answer.status == 400, answer.body
        assert said in answer.json["error"]["message"]


def test_another_type_of_content_is_refused(server):
    answer = server.ask("POST", "/v1/completions", b"{}", content_type="text/plain")
    assert answer.status == 400
    assert "Content-Type" in answer.json["error"]["message"]
    answer = server.post("/v1/audio/transcriptions", b"{}")
    assert "multipart/form-data" in answer.json["error"]["message"]
    for body in (b"--a", b"--a\r\n\r\n", b"--a\r\nContent-Disposition: x\r\n\r\n"):
        kind = "multipart/form-data; boundary=a"
        answer = server.ask("POST", "/v1/audio/transcriptions", body, content_type=kind)
        assert answer.status == 400, answer.body


def test_a_body_that_is_too_large_is_refused(chat_bundle):
    with running({"chat": chat_bundle}, limits(body=1000)) as server:
        assert server.post("/v1/completions", b" " * 1001).status == 413
        with server.connect() as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"800\r\n" + b" " * 0x800 + b"\r\n"
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
        assert is_well(server)


def test_a_wrong_path_is_told_those_there_are(server):
    told = server.ask("GET", "/nowhere").json["error"]["message"]
    assert "GET /v1/models/{name}," in told
    assert ":path" not in told + server.ask("GET", "/metrics").body.decode()


def test_other_paths_and_methods_are_refused(server):
    assert server.ask("GET", "/v1/chat/completions").status == 405
    assert server.ask("POST", "/health").headers["allow"] == "GET"
    for path in ("/nowhere", "/v1/../etc/passwd", "/page/..%2f__init__.py", "/page/a"):
        answer = server.ask("GET", path)
        assert answer.status == 404
        assert "nothing is served" in answer.json["error"]["message"]


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=RARELY)])
def test_connections_that_are_opened_and_dropped_do_no_harm(server, count):
    open_before = len(server.server.server_state.connections)
    for number in range(count):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            if number % 2:
                connection.sendall(b"POST /v1/chat/completions HTT")
    wait_for(lambda: len(server.server.server_state.connections) <= open_before)
    assert is_well(server)


def test_one_connection_too_many_is_refused(chat_bundle):
    with running({"chat": chat_bundle}, limits(connections=2)) as server:
        first, second = server.connect(), server.connect()
        with first, second:
            first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 200 ")
            with server.connect() as third:
                answer = third.recv(4096)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"Retry-After: 1" in answer
        wait_for(lambda: not server.server.server_state.connections)
        assert is_well(server)


def test_an_answer_ends_with_its_time(chat_bundle):
    with running({"chat": chat_bundle}, limits(seconds=0.2)) as server:
        made = server.client().chat.completions.create(**GREEDY, **LONG).choices[0]
        assert made.finish_reason == "length"
        assert made.message.content


def test_too_many_requests_are_told_when_to_try_again(chat_bundle, monkeypatch):
    from kvc.schema.errors import Overloaded

    with running({"chat": chat_bundle}) as server:

        def refuse(request, listener):
            raise Overloaded(waiting=7, seconds=3.0)

        model = server.service.catalog.models["chat"]
        monkeypatch.setattr(model.scheduler, "submit", refuse)
        answer = server.post("/v1/chat/completions", json.dumps(GREEDY).encode())
        assert (answer.status, answer.headers["retry-after"]) == (429, "3")
        with pytest.raises(openai.RateLimitError, match="7 requests wait"):
            server.client().chat.completions.create(**GREEDY)


def test_a_long_embedding_does_not_hold_up_others(
    chat_bundle, embedding_bundle, monkeypatch
):
    bundles = {"chat": chat_bundle, "words": embedding_bundle}
    with running(bundles) as server:
        model, free = server.service.catalog.models["words"], threading.Event()
        embed = model.embed

        def slow(*given):
            assert free.wait(20)
            return embed(*given)

        monkeypatch.setattr(model, "embed", slow)
        done = []

        def ask():
            made = server.client().embeddings.create(model="words", input="a")
            done.append(made)

        thread = threading.Thread(target=ask)
        thread.start()
        assert is_well(server)
        assert not done
        free.set()
        thread.join()
        assert done


def test_a_refused_body_may_not_go_on_for_ever(chat_bundle):
    with running({"chat": chat_bundle}, limits(body=10, reading=0.5)) as server:
        with server.connect() as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99999\r\n\r\n"
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
            wait_for(lambda: not goes_on(connection))
        assert server.ask("GET", "/health").status == 200


def goes_on(connection):
    """Whether a connection takes more bytes."""
    try:
        connection.sendall(b" ")
    except OSError:
        return False
    return True


def test_a_failure_within_a_stream_is_told_in_it(chat_bundle, monkeypatch):
    from kvc.schema.errors import FileChanged
    from kvc.serving.scheduling import Update

    class Failing:
        def cancel(self):
            """End nothing."""

    def submit(request, listener):
        listener(Update("a", (5,)))
        timer = threading.Timer(0.1, fail, (listener,))
        timer.start()
        return Failing()

    def fail(listener):
        listener(Update("b", (6,)))
        listener(Update(ending="failed", error=FileChanged(path="/home/x.kvc")))

    with running({"chat": chat_bundle}) as server:
        model = server.service.catalog.models["chat"]
        monkeypatch.setattr(model.scheduler, "submit", submit)
        stream = server.client().chat.completions.create(stream=True, **GREEDY)
        told = [next(stream).choices[0].delta.content for _ in range(3)]
        assert told == ["", "a", "b"]
        with pytest.raises(openai.APIError, match="changed while it was in use"):
            next(stream)
        body = json.dumps({**GREEDY, "stream": True}).encode()
        answer = server.post("/v1/chat/completions", body)
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n")
        whole = server.post("/v1/chat/completions", json.dumps(GREEDY).encode())
        assert whole.status == 503


def test_an_embedding_ends_with_its_time(chat_bundle, embedding_bundle, monkeypatch):
    bundles = {"chat": chat_bundle, "words": embedding_bundle}
    with running(bundles, limits(seconds=0.2)) as server:
        free = threading.Event()
        model = server.service.catalog.models["words"]
        monkeypatch.setattr(model, "embed", lambda *given: free.wait(20))
        answer = server.post("/v1/embeddings", b'{"input": "a", "model": "words"}')
        assert answer.status == 408
        assert "within 0.2 s" in answer.json["error"]["message"]
        assert server.service.is_busy
        free.set()
        wait_for(lambda: not server.service.is_busy)
        assert is_well(server)


def test_a_bundle_that_is_replaced_fails_alone(chat_bundle, embedding_bundle, tmp_path):
    path = tmp_path / "own.kvc"
    shutil.copy(embedding_bundle, path)
    with running({"chat": chat_bundle, "words": path}) as server:
        client = server.client()
        assert client.embeddings.create(model="words", input="a").data
        path.write_bytes(path.read_bytes() + b"\0")
        with pytest.raises(openai.InternalServerError) as caught:
            client.embeddings.create(model="words", input="a")
        assert caught.value.status_code == 503
        assert "own.kvc changed while it was in use" in caught.value.message
        assert str(tmp_path) not in caught.value.message
        assert is_well(server)


def test_a_bundle_that_was_read_may_be_replaced(chat_bundle, tmp_path):
    path = tmp_path / "own.kvc"
    shutil.copy(chat_bundle, path)
    with running({"chat": path}, mode="read") as server:
        assert is_well(server)
        path.write_bytes(b"")
        assert is_well(server)


@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_run_are_ended_as_the_server_ends(chat_bundle, stream):
    with running({"chat": chat_bundle}, drain=0.1) as server:
        client, made = server.client(), []

        def ask():
            found = client.chat.completions.create(stream=stream, **GREEDY, **LONG)
            made.extend(found if stream else [found])

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for(lambda: status(server).running == 1)
        server.stop()
        thread.join(20)
        assert made[-1].choices[0].finish_reason == "length"


def test_answers_that_run_may_finish_as_the_server_ends(chat_bundle):
    with running({"chat": chat_bundle}, drain=20) as server:
        client = server.client()
        wanted = client.chat.completions.create(max_tokens=200, **GREEDY)
        stream = client.chat.completions.create(stream=True, max_tokens=200, **GREEDY)
        text = next(stream).choices[0].delta.content
        server.stop()
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == wanted.choices[0].message.content


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=RARELY)])
def test_a_crowd_that_comes_and_leaves_leaves_nothing(chat_bundle, count):
    async def ask(client, number):
        given = {**GREEDY, "max_tokens": 30, "user": str(number % 7)}
        given["messages"] = [{"role": "user", "content": f"Hello {number}"}]
        if number % 5 == 0:
            made = await client.chat.completions.create(**given)
            return made.choices[0].message.content
        text = ""
        stream = await client.chat.completions.create(stream=True, **given)
        async with stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if number % 3 == 0 and text:
                    return None
        return text

    async def crowd(port):
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            asked = [ask(client, number) for number in range(count)]
            return await asyncio.gather(*asked)

    room = limits(queue=count, connections=2 * count)
    roomy = Limits(queue=count)
    with running({"chat": chat_bundle}, room, scheduling=roomy) as server:
        first = asyncio.run(crowd(server.port))
        wait_for(lambda: status(server).running == status(server).waiting == 0)
        wait_for(lambda: not server.service._running)
        wait_for(lambda: not server.server.server_state.tasks)
        again = asyncio.run(crowd(server.port))
        assert first == again
        assert sum(text is not None for text in first) > count / 2
        assert is_well(server)


def test_a_model_whose_thread_has_ended_is_told_by_health(chat_bundle):
    with running({"chat": chat_bundle}) as server:
        assert server.ask("GET", "/health").status == 200
        server.service.catalog.models["chat"].scheduler.close()
        answer = server.ask("GET", "/health")
        assert answer.status == 503
        told = answer.json["error"]["message"]
        assert "the scheduler of chat has been closed" in told
