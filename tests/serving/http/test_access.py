"""Who may use a server, and what it tells of others."""

import json
import logging
from dataclasses import replace

import openai
import pytest
from running_servers import limits, running, wait_for

from kvc.serving.http.guards import host_of
from kvc.serving.http.service import Access

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"model": "chat", "messages": HELLO, "temperature": 0, "max_tokens": 2}
LOCAL = Access(hosts=frozenset({"localhost", "127.0.0.1", "::1"}))


class Kept(logging.Handler):
    """Keeps what is logged, with what a formatter would add."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(logging.Formatter().format(record))


@pytest.fixture
def logged():
    root, kept = logging.getLogger(), Kept()
    before = root.level
    root.addHandler(kept)
    root.setLevel(logging.DEBUG)
    yield kept.lines
    root.removeHandler(kept)
    root.setLevel(before)


def test_a_key_is_needed_but_for_health_and_the_page(chat_bundle):
    access = replace(LOCAL, keys=(b"secret", b"other"))
    with running({"chat": chat_bundle}, access=access) as server:
        for key in ("secret", "other"):
            server.client(key).chat.completions.create(**GREEDY)
        for key in ("Secret", "secrets", "s"):
            with pytest.raises(openai.AuthenticationError, match="API key"):
                server.client(key).models.list()
        for header in ("", "Basic secret", "Bearer", "Bearer secre", "secret"):
            answer = server.ask("GET", "/metrics", authorization=header)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json["error"]["code"] == "invalid_api_key"
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/").status in (200, 404)
        assert server.ask("GET", "/v1/models").status == 401


def test_a_key_may_have_any_letters(chat_bundle):
    with running({"chat": chat_bundle}, access=Access(("clé".encode(),))) as server:
        for key, status in (("clé".encode(), 200), (b"cle", 401)):
            with server.connect() as connection:
                connection.sendall(
                    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
                    b"Authorization: Bearer " + key + b"\r\n\r\n"
                )
                assert connection.recv(100).startswith(b"HTTP/1.1 %d " % status)


def test_a_page_whose_name_leads_here_is_refused(chat_bundle):
    with running({"chat": chat_bundle}, access=LOCAL) as server:
        for host in ("localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8080"):
            assert server.ask("GET", "/health", host=host).status == 200
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.x", "[", ""):
            answer = server.ask("GET", "/health", host=host)
            assert answer.status == 403, host
            assert "evil" not in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:80", "a"), ("[::1]:80", "::1"), ("A", "a"), ("[", ""), ("", ""), ("@", "")],
)
def test_the_name_in_a_header(header, name):
    assert host_of(header) == name


def test_other_web_pages_are_refused_unless_allowed(chat_bundle):
    access = replace(LOCAL, origins=frozenset({"https://good.example"}))
    with running({"chat": chat_bundle}, access=access) as server:
        here = f"http://127.0.0.1:{server.port}"
        assert server.ask("GET", "/health", origin=here).status == 200
        for origin in ("https://evil.example", "null", "https://good.example.evil"):
            assert server.ask("GET", "/health", origin=origin).status == 403
        good = server.ask("GET", "/health", origin="https://good.example")
        assert good.status == 200
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        asked = {"access_control_request_method": "POST"}
        answer = server.ask(
            "OPTIONS", "/v1/completions", origin="https://good.example", **asked
        )
        assert answer.status == 204
        headers = answer.headers["access-control-allow-headers"].split(", ")
        assert {"authorization", "*"} <= set(headers)
        bad = server.ask("OPTIONS", "/v1/completions", origin="https://a.b", **asked)
        assert bad.status == 403


def test_nothing_that_clients_write_is_told_to_others(
    chat_bundle, embedding_bundle, logged
):
    marker = "Zebra7Marker"
    said = [{"role": "user", "content": marker}]
    schema = {"type": "object", "properties": {marker: {"type": "integer"}}}
    schema["requird"] = [marker]
    form = {"type": "json_schema", "json_schema": {"name": marker, "schema": schema}}
    tool = {"type": "function", "function": {"name": marker, "parameters": schema}}
    bodies = [
        {"messages": said},
        {"messages": said, "stream": True},
        {"messages": said, "response_format": form},
        {"messages": said, "tools": [tool], "tool_choice": "required"},
        {"messages": said, "user": marker, "stop": marker, "metadata": {"a": marker}},
        {"messages": said, "regex": f"({marker}"},
        {"messages": said, "model": marker},
        {"messages": [{"role": marker, "content": marker}]},
        {"messages": said, marker: marker},
        {"messages": said, "logit_bias": {marker: 1}},
        {"messages": [{"role": "user", "content": marker * 2000}]},
        {"prompt": marker, "echo": True},
        {"input": marker, "model": "words"},
        {"input": [marker, 1], "model": "words"},
    ]
    paths = {"messages": "chat/completions", "prompt": "completions"}
    with running({"chat": chat_bundle, "words": embedding_bundle}) as server:
        for body in bodies:
            path = paths.get(next(iter(body)), "embeddings")
            told = {"model": "chat", "max_tokens": 3, **body}
            if path == "embeddings":
                del told["max_tokens"]
            server.post(f"/v1/{path}", json.dumps(told).encode())
        server.ask("GET", f"/{marker}?{marker}", user_agent=marker, cookie=marker)
        server.ask(marker, "/health")
        server.ask("GET", f"/v1/models/{marker}")
        with server.connect() as connection:
            connection.sendall(f"{marker} {marker}\r\n\r\n".encode())
            connection.recv(4096)
        others = [
            server.ask("GET", "/metrics"),
            server.ask("GET", "/v1/models"),
            server.ask("GET", "/health"),
            server.post("/v1/chat/completions", b"{}"),
        ]
    assert sum("POST /v1" in line for line in logged) > len(bodies)
    assert not [line for line in logged if marker in line or "Traceback" in line]
    for answer in others:
        assert marker.encode() not in answer.body


def test_an_error_that_nobody_expected_tells_nothing(chat_bundle, monkeypatch, logged):
    with running({"chat": chat_bundle}) as server:

        def fail(request, listener):
            raise RuntimeError("Zebra7Marker /etc/passwd")

        model = server.service.catalog.models["chat"]
        monkeypatch.setattr(model.scheduler, "submit", fail)
        answer = server.post("/v1/chat/completions", json.dumps(GREEDY).encode())
        assert answer.status == 500
        assert answer.json["error"]["code"] == "internal_error"
        assert b"Zebra" not in answer.body
    assert "RuntimeError at test_access.py" in "\n".join(logged)
    assert not [line for line in logged if "Zebra" in line]


def test_metrics_count_requests_and_tokens(chat_bundle):
    with running({"chat": chat_bundle}, limits(tokens=3)) as server:
        client = server.client()
        for _ in range(2):
            client.chat.completions.create(**{**GREEDY, "max_tokens": 5})
        server.post("/v1/chat/completions", b"{")
        scheduler = server.service.catalog.models["chat"].scheduler
        wait_for(lambda: scheduler.status.finished == 2)
        answer = server.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    endpoint = 'endpoint="/v1/chat/completions"'
    assert numbers[f'kvc_http_requests_total{{{endpoint},status="200"}}'] == "2"
    assert numbers[f'kvc_http_requests_total{{{endpoint},status="400"}}'] == "1"
    assert numbers['kvc_generated_tokens_total{model="chat"}'] == "6"
    assert numbers['kvc_first_token_seconds_count{model="chat"}'] == "2"
    assert numbers['kvc_first_token_seconds_bucket{model="chat",le="+Inf"}'] == "2"
    assert numbers['kvc_running{model="chat"}'] == "0"
    for line in lines:
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0
