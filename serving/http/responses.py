"""Answers of HTTP in JSON, and how errors become answers."""

import json

from starlette.responses import Response

from kvc.schema.errors import KvcError, WrongMethod
from kvc.serving.openai.errors import INTERNAL, error_body, told


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
    found = told(error, hidden)
    headers = {} if found.retry is None else {"retry-after": str(found.retry)}
    if isinstance(error, WrongMethod):
        headers["allow"] = error.allowed
    if found.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonAnswer(found.body, found.status, headers)


def failure_answer() -> Response:
    """Return the answer for an error that nobody expected."""
    return JsonAnswer(error_body(INTERNAL, 500, code="internal_error"), 500)


def busy_answer() -> Response:
    """Return the answer to one connection too many."""
    message = "this server has as many connections as it takes; try again in 1 s"
    return JsonAnswer(error_body(message, 503, code="too_many_connections"), 503)
