"""Errors of kvc become answers of HTTP: a status, and OpenAI's object `error`.

In: a `KvcError`. Out: its sentence, without the paths of this machine.
"""

from pathlib import Path
from typing import Final

from kvc.schema.errors import (
    BadChatTemplate,
    BadPicture,
    BadRequest,
    BadSetting,
    BadSound,
    CacheOverflow,
    Closed,
    FormatError,
    InputMismatch,
    KeyRefused,
    KvcError,
    LoadError,
    MissingPackage,
    NotLoaded,
    OriginRefused,
    OutOfMemory,
    Overloaded,
    PromptTooLong,
    RequestTooLarge,
    RequestTooSlow,
    TemplateLimit,
    TextTooLong,
    UnknownModel,
    UnknownPath,
    WrongMethod,
    WrongModel,
)
from kvc.schema.frozen import frozen

INTERNAL: Final = "the server has failed to answer; its log says where"

# The first that fits counts: kinds -> the status.
_STATUSES: Final[tuple[tuple[tuple[type[KvcError], ...], int], ...]] = (
    ((KeyRefused,), 401),
    ((OriginRefused,), 403),
    ((UnknownModel, UnknownPath, NotLoaded), 404),
    ((WrongMethod,), 405),
    ((RequestTooSlow,), 408),
    ((RequestTooLarge,), 413),
    ((Overloaded,), 429),
    ((MissingPackage,), 501),
    (
        (
            BadChatTemplate, BadPicture, BadRequest, BadSetting, BadSound,
            CacheOverflow, InputMismatch, PromptTooLong, TemplateLimit, TextTooLong,
            WrongModel,
        ),
        400,
    ),
    ((Closed, FormatError, LoadError, OutOfMemory), 503),
)  # fmt: skip
_CODES: Final[dict[type[KvcError], str]] = {
    KeyRefused: "invalid_api_key",
    UnknownModel: "model_not_found",
    Overloaded: "rate_limit_exceeded",
    PromptTooLong: "context_length_exceeded",
    CacheOverflow: "context_length_exceeded",
    TextTooLong: "context_length_exceeded",
}
# Names of settings -> the fields of requests that they come from.
_FIELDS: Final = {
    "images": "messages", "json_schema": "response_format", "text": "prompt",
}  # fmt: skip
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_SERVER: Final = 500


@frozen
class Told:
    """An error as it is told to a client.

    Attributes:
        status: the status of HTTP.
        body: OpenAI's object.
        retry: after how many seconds to try again, None if that is of no use.
    """

    status: int
    body: dict[str, object]
    retry: int | None = None


def told(error: KvcError, hidden: tuple[str, ...] = ()) -> Told:
    """Return an error as it is told to a client.

    Args:
        error: the error.
        hidden: paths that are left out of its sentence.
    """
    status = next(
        (number for kinds, number in _STATUSES if isinstance(error, kinds)), _SERVER
    )
    message = _sentence(error)
    for path in hidden:
        message = message.replace(path, Path(path).name)
    param = None
    if isinstance(error, BadSetting):
        param = _FIELDS.get(error.name, error.name)
    if isinstance(error, UnknownModel):
        param = "model"
    code = _CODES.get(type(error), error.code)
    retry = max(1, round(error.seconds)) if isinstance(error, Overloaded) else None
    return Told(status, error_body(message, status, param, code), retry)


def _sentence(error: KvcError) -> str:
    """Return the sentence of an error, without advice that a client cannot follow."""
    if isinstance(error, PromptTooLong):
        has = f"the prompt has {error.count} tokens"
        return f"{has}, but there is room for {error.room}; shorten it"
    return str(error)


def error_body(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """Return OpenAI's object for an error."""
    usual = "server_error" if status >= _SERVER else "invalid_request_error"
    kind = _TYPES.get(status, usual)
    inner = {"message": message, "type": kind, "param": param, "code": code}
    return {"error": inner}
