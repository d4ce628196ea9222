"""Bodies of requests: read up to a limit and a time, and parsed as JSON.

In: a request of starlette. Out: bytes, or a parsed value. What is too large, too slow,
of another type, too deep or no JSON is refused in words.
"""

import asyncio
import json
from typing import Final, NoReturn

from starlette.requests import Request

from kvc.schema.errors import BadRequest, RequestTooLarge, RequestTooSlow
from kvc.serving.http.limits import HttpLimits
from kvc.serving.http.workers import Workers

_SMALL: Final = 1 << 16  # bytes that are parsed in the event loop
_DEPTH: Final = 64
_VALUES: Final = 1 << 20  # parsing more would hold up all threads for too long


async def read_body(request: Request, limits: HttpLimits) -> bytes:
    """Return the body of a request.

    Raises:
        RequestTooLarge: it has too many bytes.
        RequestTooSlow: it does not arrive in time.
        ClientDisconnect: the client has left.
    """
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limits.body:
        raise RequestTooLarge(most=limits.body)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.reading):
            async for part in request.stream():
                size += len(part)
                if size > limits.body:
                    raise RequestTooLarge(most=limits.body)
                parts.append(part)
    except TimeoutError as error:
        what = "the request did not arrive"
        raise RequestTooSlow(seconds=limits.reading, what=what) from error
    return b"".join(parts)


def check_type(request: Request, expected: str) -> None:
    """Check the type of a body.

    Raises:
        BadRequest: it has another type.
    """
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != expected:
        raise BadRequest(reason=f"its Content-Type is not {expected}")


async def read_json(request: Request, limits: HttpLimits, workers: Workers) -> object:
    """Return the parsed body of a request; a long one is parsed by a thread.

    Raises:
        BadRequest: the body is not JSON.
        KvcError, ClientDisconnect: as `read_body` and `Workers.run`.
    """
    check_type(request, "application/json")
    body = await read_body(request, limits)
    if len(body) <= _SMALL:
        return parse_json(body)
    return await workers.run(lambda: parse_json(body))


def parse_json(body: bytes) -> object:
    """Return a parsed body.

    Raises:
        BadRequest: it is not JSON, too deep, or has texts that are no Unicode.
    """
    if body.count(b",") > _VALUES:
        raise BadRequest(reason=f"its JSON has more than {_VALUES} commas")
    try:
        value: object = json.loads(body.decode(), parse_constant=_refused)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadRequest(reason=f"its body is not JSON ({place})") from error
    except UnicodeError as error:
        raise BadRequest(reason="its body is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(reason="its body is not JSON, or too deep") from error
    _check_depth(value)
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(name)


def _check_depth(value: object) -> None:
    layer = [value]
    for _ in range(_DEPTH):
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return
    reason = f"its JSON has more than {_DEPTH} levels"
    raise BadRequest(reason=reason)
