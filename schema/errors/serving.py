"""Errors of a server: requests that it does not answer, and why."""

from kvc.schema.errors.base import KvcError, meant, shortened


class ServingError(KvcError):
    """A server does not answer a request."""


class BadRequest(ServingError):
    """What a client has sent is not a request that the server can read."""

    reason: str
    template = "the request cannot be read: {reason}"


class RequestTooLarge(ServingError):
    """A request has more bytes than the server takes."""

    most: int
    template = "the request has more than {most} bytes, which this server takes at most"


class RequestTooSlow(ServingError):
    """A request did not arrive, or was not answered, in time."""

    seconds: float
    what: str
    template = "{what} within {seconds:g} s, which this server waits at most"


class KeyRefused(ServingError):
    """A request has no API key, or one that the server does not know."""

    template = "a valid API key is needed, as `Authorization: Bearer KEY`"


class OriginRefused(ServingError):
    """A request comes from a web page, or for a host, that the server does not serve.

    Attributes: what ("Host" or "Origin"), option (what would allow it).
    """

    what: str
    option: str
    template = "the header {what} names another host; {option} allows it"


class UnknownModel(ServingError):
    """A request is for a model that the server does not have."""

    name: str
    known: tuple[str, ...]
    template = "there is no model {name!r}{meant}; models: {listed}"

    def _text(self) -> str:
        near, listed = meant(self.name, self.known), shortened(self.known)
        if not self.name:
            return f"the request names no model; models: {listed}"
        return self.template.format(name=self.name[:80], meant=near, listed=listed)


class WrongModel(ServingError):
    """A request is for a model of another kind.

    Attributes: name (of the model), does (what it does), asked (what is asked of it).
    """

    name: str
    does: str
    asked: str
    template = "the model {name!r} {does}; it cannot {asked}"


class UnknownPath(ServingError):
    """A request is for a path or a method of HTTP that the server does not have."""

    known: tuple[str, ...]
    template = "nothing is served at this path{listed}"

    def _text(self) -> str:
        listed = f"; there is {', '.join(self.known)}" if self.known else ""
        return self.template.format(listed=listed)


class WrongMethod(ServingError):
    """A request has a method of HTTP that its path does not take."""

    allowed: str
    template = "this path takes {allowed} alone"
