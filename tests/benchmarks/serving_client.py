"""One streamed request of OpenAI's HTTP, timed: what `serving.py` sends many of.

In: an address, a body. Out: when each piece of the answer came. It uses plain sockets:
a server on the same cores must not wait for its client's parsing.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(slots=True)
class Answered:
    """An answer, or why there is none.

    Attributes:
        begun: when the request was sent, in seconds of `time.perf_counter`.
        pieces: when each piece with text came.
        prompt: the number of tokens of the prompt, as the server counts.
        reused: how many of them the server had read before, if it tells.
        tokens: the number of tokens of the answer, as the server counts.
        text: the answer.
        failure: what went wrong, "" if nothing.
    """

    begun: float = 0.0
    pieces: list[float] = field(default_factory=list)
    prompt: int = 0
    reused: int = 0
    tokens: int = 0
    text: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens, and which model is asked.

    Attributes:
        extra: fields for the body that this server alone knows.
        key: the API key, "" for none.
        seconds: after how many seconds an answer that has not ended is a failure.
    """

    host: str
    port: int
    model: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)
    key: str = ""
    seconds: float = 600.0


async def ask(place: Place, path: str, body: Mapping[str, object]) -> Answered:
    """Send a request, and read its answer to the end. Failures are in the answer."""
    whole = {"stream": True, "stream_options": {"include_usage": True}, **body}
    if place.model:
        whole["model"] = place.model
    answered = Answered(begun=time.perf_counter())
    try:
        async with asyncio.timeout(place.seconds):
            await _exchange(place, path, json.dumps(whole).encode(), answered)
    except TimeoutError:
        answered.failure = f"not ended after {place.seconds:g} s"
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        answered.failure = f"{type(error).__name__}: {error}"
    if not answered.failure and not answered.pieces:
        answered.failure = "the answer has no text"
    return answered


async def _exchange(place: Place, path: str, body: bytes, answered: Answered) -> None:
    reader, writer = await _sent(place, "POST", path, body)
    try:
        await _read_answer(reader, answered)
    finally:
        writer.close()


async def get(place: Place, path: str) -> tuple[int, bytes]:
    """Return the status and the body that a path has."""
    reader, writer = await _sent(place, "GET", path, b"")
    try:
        status, chunked = await _head(reader)
        parts = [piece async for piece in _body(reader, chunked)]
        return status, b"".join(parts)
    finally:
        writer.close()


async def _sent(
    place: Place, method: str, path: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(place.host, place.port)
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {place.host}:{place.port}",
        "Connection: close",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
    ]
    if place.key:
        lines.append(f"Authorization: Bearer {place.key}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Return the status, and whether the body comes in chunks."""
    head = await reader.readuntil(b"\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in head.lower()
    return int(head.split(None, 2)[1]), chunked


async def _body(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    if not chunked:
        while piece := await reader.read(1 << 16):
            yield piece
        return
    while size := int((await reader.readline()).partition(b";")[0], 16):
        piece = await reader.readexactly(size + 2)
        yield piece[:-2]


async def _read_answer(reader: asyncio.StreamReader, answered: Answered) -> None:
    status, chunked = await _head(reader)
    rest, texts = b"", list[str]()
    async for piece in _body(reader, chunked):
        now = time.perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                _take(line[5:].strip(), now, answered, texts)
    answered.text = "".join(texts)
    if status != 200:
        answered.failure = f"status {status}: {_sentence(rest)}"


def _take(text: bytes, now: float, answered: Answered, texts: list[str]) -> None:
    if text == b"[DONE]":
        return
    told = json.loads(text)
    if "error" in told:
        answered.failure = _sentence(text)
        return
    if usage := told.get("usage"):
        answered.prompt = usage["prompt_tokens"]
        answered.tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answered.reused = details.get("cached_tokens") or 0
    for choice in told.get("choices", ()):
        if new := _text_of(choice):
            answered.pieces.append(now)
            texts.append(new)


def _text_of(choice: Mapping[str, Any]) -> str:
    """Return the new text of a choice of a chat or a completion."""
    delta = choice.get("delta") or {}
    return (
        delta.get("content")
        or delta.get("reasoning_content")
        or choice.get("text")
        or ""
    )


def _sentence(body: bytes) -> str:
    """Return the sentence of an error, or the begin of what came instead."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
