"""`Guard`: what is true of all requests: access, the log, the numbers, errors.

In: a request. Out: the answer of the endpoint, or an error in OpenAI's form. The log
has the endpoint, the status and the time; nothing that a client wrote.
"""

import hmac
import logging
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvc.schema.errors import BadRequest, KeyRefused, KvcError, OriginRefused
from kvc.serving.http.responses import error_answer, failure_answer, log_failure
from kvc.serving.http.service import ENDPOINT, NOTE, Access, Service

log = logging.getLogger("kvc.serving.http")

OPEN: Final = ("/health",)  # paths that need no key
_PAGE: Final = ("/", "/page/")
_LEFT: Final = 499  # the status of a request whose client has left
_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, POST",
    # The star is for what libraries add, and does not mean the first.
    "access-control-allow-headers": "authorization, content-type, *",
    "access-control-max-age": "600",
}


class Guard:
    """Runs an app for the requests that may pass."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Guard an app."""
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = _Seen(send, Headers(scope=scope), self._service.access)
        began = time.perf_counter()
        try:
            answer = check(scope, self._service.access)
            await (answer or self._app)(scope, receive, seen.send)
        except KvcError as error:
            if not seen.status:
                answer = error_answer(error, self._service.hidden)
                await answer(scope, receive, seen.send)
        except ClientDisconnect:
            seen.status = seen.status or _LEFT
        except Exception as error:
            log_failure(error)
            if not seen.status:
                await failure_answer()(scope, receive, seen.send)
        self._tell(scope, seen.status or _LEFT, time.perf_counter() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = scope.get(ENDPOINT, "other")
        self._service.metrics.request(endpoint, status)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        note, took = scope.get(NOTE, ""), seconds * 1000
        log.info("%s %s %d %.0f ms%s", method, endpoint, status, took, note)


_METHODS: Final = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")


class _Seen:
    """Sends an answer, and remembers its status."""

    def __init__(self, send: Send, headers: Headers, access: Access) -> None:
        self._send, self.status = send, 0
        self._allowed = _allowed(headers.get("origin"), access)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-content-type-options"] = "nosniff"
            if self._allowed:
                headers["access-control-allow-origin"] = self._allowed
                headers.add_vary_header("Origin")
        await self._send(message)


def check(scope: Scope, access: Access) -> Response | None:
    """Check that a request may pass; return the answer if it has one already.

    That is the answer to a question of a browser, or to a request of two lengths.

    Raises:
        OriginRefused: it comes from another web page, or asks another host.
        KeyRefused: it has no key that is known.
    """
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers and "content-length" in headers:
        return _two_lengths()
    _check_host(headers, access)
    _check_origin(headers, access)
    if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
        return Response(status_code=204, headers=_PREFLIGHT)
    path = scope["path"]
    is_page = path == _PAGE[0] or path.startswith(_PAGE[1])
    if access.keys and path not in OPEN and not is_page:
        _check_key(headers.get("authorization", ""), access.keys)
    return None


def _two_lengths() -> Response:
    """Return the answer to a request that a proxy may have taken for two.

    The connection ends with it.
    """
    reason = "it has both Content-Length and Transfer-Encoding"
    answer = error_answer(BadRequest(reason=reason), ())
    answer.headers["connection"] = "close"
    return answer


def _check_host(headers: Mapping[str, str], access: Access) -> None:
    """Refuse other hosts: a web page may have made its own name lead here."""
    if not access.hosts:
        return
    if host_of(headers.get("host", "")) not in access.hosts:
        raise OriginRefused(what="Host", option="--host")


def host_of(header: str) -> str:
    """Return the name in a header Host, without the port, in lower case."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _check_origin(headers: Mapping[str, str], access: Access) -> None:
    origin = headers.get("origin")
    if origin is None or _allowed(origin, access) is not None:
        return
    if origin.partition("://")[2] != headers.get("host"):
        raise OriginRefused(what="Origin", option="--allow-origin")


def _allowed(origin: str | None, access: Access) -> str | None:
    """Return an origin that is allowed by an option, None for any other."""
    if origin is None:
        return None
    listed = access.origins
    return origin if "*" in listed or origin in listed else None


def _check_key(header: str, keys: tuple[bytes, ...]) -> None:
    kind, _, given = header.partition(" ")
    found = given.strip().encode("latin-1")  # the bytes that came
    # All keys are compared, so that the time tells nothing of which is near.
    fits = [hmac.compare_digest(found, key) for key in keys]
    if kind.lower() != "bearer" or not any(fits):
        raise KeyRefused()
