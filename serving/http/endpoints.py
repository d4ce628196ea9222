"""The endpoints: each makes of a request what answers it.

In: requests of starlette. Out: answers. Bodies are checked by `kvc.serving.openai`;
what may take long runs in threads.
"""

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvc.schema.errors import WrongMethod
from kvc.serving.http.answering import JobAnswer, unless_left
from kvc.serving.http.bodies import read_json
from kvc.serving.http.forms import read_form
from kvc.serving.http.metrics import TYPE
from kvc.serving.http.page_files import page_answer, page_name
from kvc.serving.http.responses import JsonAnswer
from kvc.serving.http.service import ENDPOINT, Service
from kvc.serving.models.catalog import Found
from kvc.serving.openai.chat_requests import chat_request
from kvc.serving.openai.completion_requests import completion_request
from kvc.serving.openai.embeddings import embedding_object, embedding_request
from kvc.serving.openai.fields import Fields
from kvc.serving.openai.jobs import Asking, ChatJob, CompletionJob, Job
from kvc.serving.openai.model_objects import model_list, model_object
from kvc.serving.openai.transcriptions import speech_answer, speech_request

Answering = Callable[[Service, Request], Awaitable[Response]]
Making = Callable[[Asking, Fields, int], Job]


class Endpoint:
    """An endpoint as an app of ASGI."""

    def __init__(
        self, service: Service, method: str, path: str, answering: Answering
    ) -> None:
        """Answer requests of a method for a path by a function."""
        self._service, self._answering = service, answering
        self._method, self._path = method, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            WrongMethod: it has another method.
        """
        scope[ENDPOINT] = self._path
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method != self._method:
            raise WrongMethod(allowed=self._method)
        response = await self._answering(self._service, Request(scope, receive))
        await response(scope, receive, send)


async def chat_completions(service: Service, request: Request) -> Response:
    """Answer POST /v1/chat/completions."""
    return await _job(service, request, _chat_job)


async def completions(service: Service, request: Request) -> Response:
    """Answer POST /v1/completions."""
    return await _job(service, request, _completion_job)


def _chat_job(asking: Asking, fields: Fields, most: int) -> Job:
    return ChatJob(asking, chat_request(fields, most))


def _completion_job(asking: Asking, fields: Fields, most: int) -> Job:
    return CompletionJob(asking, completion_request(fields, most))


async def _job(service: Service, request: Request, make: Making) -> Response:
    began, limits = time.perf_counter(), service.limits
    service.check_open()
    fields = Fields(await read_json(request, limits, service.preparing))
    found = found_in(service, fields)
    asking = Asking(found, client_of(request, fields), limits.seconds)
    making = service.preparing.run(lambda: make(asking, fields, limits.tokens))
    job = await unless_left(request, making, limits.seconds)
    return JobAnswer(service, job, began)


async def embeddings(service: Service, request: Request) -> Response:
    """Answer POST /v1/embeddings."""
    service.check_open()
    fields = Fields(await read_json(request, service.limits, service.preparing))
    found = found_in(service, fields)
    model, asked = found.embedding_model(), embedding_request(fields)

    def run() -> Response:
        made = model.embed(asked.inputs, asked.prompt)
        return JsonAnswer(embedding_object(fields, asked, made, found.id))

    making = service.others.run(run)
    return await unless_left(request, making, service.limits.seconds)


async def transcriptions(service: Service, request: Request) -> Response:
    """Answer POST /v1/audio/transcriptions."""
    return await _speech(service, request, "transcribe")


async def translations(service: Service, request: Request) -> Response:
    """Answer POST /v1/audio/translations."""
    return await _speech(service, request, "translate")


async def _speech(service: Service, request: Request, task: str) -> Response:
    service.check_open()
    form = await read_form(request, service.limits, service.preparing)
    found = service.catalog.find(dict(form.texts).get("model"))
    model, asked = found.speech_model(), speech_request(form.texts)

    def run() -> Response:
        named = task if task == "translate" else None
        language, warmth = asked.language, asked.temperature
        heard = model.hear(form.file, language, named, asked.times, warmth)
        content, kind = speech_answer(asked, heard, task)
        return Response(content, headers={"content-type": kind})

    making = service.others.run(run)
    return await unless_left(request, making, service.limits.seconds)


def found_in(service: Service, fields: Fields) -> Found:
    """Return the model that a request is for.

    Raises:
        BadSetting, UnknownModel: there is no such model.
    """
    return service.catalog.find(fields.text("model"))


def client_of(request: Request, fields: Fields) -> str:
    """Return whose request it is: as it says, or its address."""
    user = fields.get("user")
    address = "" if request.client is None else request.client.host
    return user[:256] if isinstance(user, str) and user else address


async def models(service: Service, request: Request) -> Response:
    """Answer GET /v1/models."""
    return JsonAnswer(model_list(service.catalog.all, service.created))


async def model(service: Service, request: Request) -> Response:
    """Answer GET /v1/models/{id}."""
    found = service.catalog.find(request.path_params["name"])
    return JsonAnswer(model_object(found, service.created))


async def health(service: Service, request: Request) -> Response:
    """Answer GET /health."""
    service.check_alive()
    return JsonAnswer({"status": "ok"})


async def page(service: Service, request: Request) -> Response:
    """Answer GET / and GET /page/{name}."""
    return page_answer(service.page, page_name(request))


async def metrics(service: Service, request: Request) -> Response:
    """Answer GET /metrics."""
    return Response(service.metrics.text(), headers={"content-type": TYPE})
