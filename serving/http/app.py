"""`make_app`: the app of a server: its paths, and the guard before them."""

from typing import Final, NoReturn

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from kvc.schema.errors import UnknownPath
from kvc.serving.http import endpoints
from kvc.serving.http.endpoints import Answering, Endpoint
from kvc.serving.http.guards import Guard
from kvc.serving.http.service import Service

_PATHS: Final[tuple[tuple[str, str, Answering], ...]] = (
    ("POST", "/v1/chat/completions", endpoints.chat_completions),
    ("POST", "/v1/completions", endpoints.completions),
    ("POST", "/v1/embeddings", endpoints.embeddings),
    ("POST", "/v1/audio/transcriptions", endpoints.transcriptions),
    ("POST", "/v1/audio/translations", endpoints.translations),
    ("GET", "/v1/models", endpoints.models),
    ("GET", "/v1/models/{name:path}", endpoints.model),
    ("GET", "/health", endpoints.health),
    ("GET", "/metrics", endpoints.metrics),
    ("GET", "/", endpoints.page),
    ("GET", "/page/{name}", endpoints.page),
)


def make_app(service: Service) -> ASGIApp:
    """Return the app of a server.

    Args:
        service: what its requests share; it must be started in the event loop.
    """
    routes = [
        Route(path, Endpoint(service, method, _shown(path), answering))
        for method, path, answering in _PATHS
    ]
    return Guard(Router(routes, redirect_slashes=False, default=_nowhere), service)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> NoReturn:
    known = tuple(f"{method} {_shown(path)}" for method, path, _ in _PATHS)
    raise UnknownPath(known=known)


def _shown(path: str) -> str:
    """Return a path as people write it, without starlette's kinds of parts."""
    return path.replace(":path}", "}")
