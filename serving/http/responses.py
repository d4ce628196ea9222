"""Answers of HTTP in JSON, and how errors become answers."""

import json
import logging
import traceback
from typing import Final

from starlette.responses import Response

from kvc.schema.errors import KvcError, WrongMethod
from kvc.serving.openai.errors import INTERNAL, Told, error_body, told

log = logging.getLogger("kvc.serving.http")

_FAILED: Final = 500


class JsonAnswer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the bytes of a value."""
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        try:
            return text.encode()
        except UnicodeEncodeError:  # half of a character, which a model may escape
            return json.dumps(content, separators=(",", ":")).encode()


def error_answer(error: KvcError, hidden: tuple[str, ...]) -> Response:
    """Return the answer for an error of kvc."""
    found = told_and_logged(error, hidden)
    headers = {} if found.retry is None else {"retry-after": str(found.retry)}
    if isinstance(error, WrongMethod):
        headers["allow"] = error.allowed
    if found.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonAnswer(found.body, found.status, headers)


def told_and_logged(error: KvcError, hidden: tuple[str, ...]) -> Told:
    """Return an error as it is told to a client; log it if it is of this side."""
    found = told(error, hidden)
    if found.status == _FAILED:
        log_failure(error)
    return found


def log_failure(error: Exception) -> None:
    """Log an error by its type and places; its message may have what a client wrote."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[::-1]
    )
    log.error("a request failed: %s at %s", type(error).__name__, places)


def failure_answer() -> Response:
    """Return the answer for an error that nobody expected."""
    return JsonAnswer(error_body(INTERNAL, 500, code="internal_error"), 500)


def busy_answer() -> Response:
    """Return the answer to one connection too many."""
    message = "this server has as many connections as it takes; try again in 1 s"
    return JsonAnswer(error_body(message, 503, code="too_many_connections"), 503)
