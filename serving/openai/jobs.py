"""`Job`: one request of a client as requests for a scheduler, and how to tell answers.

In: a checked request, the model. Out: `Request`s, and for each update of one of them
either the text of chunks, or at the end one object. This may render templates, encode
long texts and read pictures, so a thread beside the event loop makes jobs.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar
from uuid import uuid4

from kvc.runtime.generation import GenerationSettings
from kvc.schema.frozen import frozen
from kvc.serving.models.catalog import Found
from kvc.serving.models.replies import ForcedCalls, FreeReply
from kvc.serving.openai.chat_answers import ChatChoice
from kvc.serving.openai.chat_requests import ChatRequest, Telling
from kvc.serving.openai.chunks import Chunks
from kvc.serving.openai.completion_answers import TextChoice
from kvc.serving.openai.completion_requests import CompletionRequest
from kvc.serving.openai.usage import Usage
from kvc.serving.scheduling import Request, Update

_SEEDS = (1 << 63) - 1


class Job(Protocol):
    """A request of a client, as requests for a scheduler.

    Attributes:
        found: the model, and the adapter.
        requests: the requests, one for each answer.
        telling: how the answers are told.
        usage: the numbers of tokens.
    """

    found: Found
    requests: Sequence[Request]
    telling: Telling
    usage: Usage

    def opening(self) -> str:
        """Return the first chunks of a stream."""
        ...

    def chunk(self, index: int, update: Update) -> str:
        """Return the chunks of what is new of an answer, "" for nothing."""
        ...

    def closing(self) -> str:
        """Return the last chunks of a stream."""
        ...

    def take(self, index: int, update: Update) -> None:
        """Keep what is new of an answer."""
        ...

    def whole(self) -> dict[str, object]:
        """Return the object of all answers."""
        ...


@frozen
class Asking:
    """What is the same for all answers of a request.

    Attributes:
        found: the model, and the adapter.
        client: whose request it is.
        seconds: after how many seconds an answer ends.
    """

    found: Found
    client: str
    seconds: float | None


def _requests(
    asking: Asking,
    base: Request,
    settings: GenerationSettings,
    count: int,
) -> list[Request]:
    """Return a request for each answer to a prompt; those with a seed differ by it."""
    seed = settings.seed
    made = []
    for number in range(count):
        mine = settings
        if seed is not None and number:
            mine = replace(settings, seed=(seed + number) & _SEEDS)
        made.append(
            replace(
                base,
                settings=mine,
                adapter=asking.found.adapter,
                scale=asking.found.scale,
                client=asking.client,
                seconds=asking.seconds,
            )
        )
    return made


class _Choice(Protocol):
    """Reads one answer."""

    def keep(self, update: Update) -> None:
        """Keep what is new in an update for `choice`."""
        ...

    def choice(self, index: int) -> dict[str, object]:
        """Return the finished answer."""
        ...


Choice = TypeVar("Choice", bound=_Choice)


class _Answers(Generic[Choice]):
    """What both kinds of jobs tell alike; attributes and methods as of `Job`."""

    found: Found
    telling: Telling
    usage: Usage
    _choices: list[Choice]

    def _begin(self, prefix: str, kind: str, kind_of_chunks: str) -> None:
        """Name the answers.

        Args:
            prefix: what their id begins with.
            kind: what OpenAI calls the object of all answers.
            kind_of_chunks: what it calls a chunk of a stream.
        """
        created = int(time.time())
        self._head: dict[str, object] = {
            "id": f"{prefix}-{uuid4().hex}",
            "object": kind,
            "created": created,
            "model": self.found.id,
        }
        self._chunks = Chunks(
            kind_of_chunks, str(self._head["id"]), created, self.found.id
        )
        if self.telling.usage:
            self._chunks.with_usage()

    def closing(self) -> str:
        """Return the last chunks of a stream."""
        return self._chunks.usage(self.usage) if self.telling.usage else ""

    def take(self, index: int, update: Update) -> None:
        """Keep what is new of an answer."""
        self.usage.add(index, update)
        self._choices[index].keep(update)

    def whole(self) -> dict[str, object]:
        """Return the object of all answers."""
        choices = [one.choice(index) for index, one in enumerate(self._choices)]
        return {**self._head, "choices": choices, "usage": self.usage.told}


class ChatJob(_Answers[ChatChoice]):
    """Answers in a chat; attributes and methods as of `Job`."""

    def __init__(self, asking: Asking, request: ChatRequest) -> None:
        """Make the prompt.

        Raises:
            KvcError: as `Prompts.chat` and `TextModel.settings`.
        """
        self.found, self.telling = asking.found, request.telling
        model = asking.found.text_model("answer in a chat")
        model.check_length(request.chat.characters)
        prompt = model.prompts.chat(request.chat)
        settings = model.settings(request.settings, in_chat=True)
        base = Request(
            prompt.turn.tokens,
            settings,
            prompt.tokenizer,
            [one.picture for one in prompt.turn.shown],
        )
        count, forced = request.telling.count, request.forced is not None
        self.requests: Sequence[Request] = _requests(asking, base, settings, count)
        self.usage = Usage(len(prompt.turn.tokens))
        texts = model.token_texts if settings.logprobs is not None else None
        self._choices = [
            ChatChoice(ForcedCalls() if forced else FreeReply(prompt), texts)
            for _ in range(count)
        ]
        self._begin("chatcmpl", "chat.completion", "chat.completion.chunk")

    def opening(self) -> str:
        """Return the first chunks of a stream."""
        return "".join(map(self._chunks.role, range(len(self._choices))))

    def chunk(self, index: int, update: Update) -> str:
        """Return the chunks of what is new of an answer, "" for nothing."""
        self.usage.add(index, update)
        if self.telling.each:
            self._chunks.with_usage_so_far(self.usage)
        return self._chunks.chat(index, self._choices[index].take(update))


class CompletionJob(_Answers[TextChoice]):
    """Continuations of texts; attributes and methods as of `Job`."""

    def __init__(self, asking: Asking, request: CompletionRequest) -> None:
        """Encode the prompts.

        Raises:
            KvcError: as `TextModel.encode` and `TextModel.settings`.
        """
        self.found, self.telling = asking.found, request.telling
        model = asking.found.text_model("continue a text")
        settings = model.settings(request.settings, in_chat=False)
        texts = model.token_texts if settings.logprobs is not None else None
        requests: list[Request] = []
        self._choices = []
        count, prompts = request.telling.count, 0
        for one in request.prompts:
            tokens = model.encode(one) if isinstance(one, str) else one
            prompts += len(tokens)
            base = Request(tokens, settings, model.tokenizer)
            requests += _requests(asking, base, settings, count)
            begin = ""
            if request.echo:
                begin = one if isinstance(one, str) else model.decode(one)
            self._choices += [TextChoice(begin, texts, tokens) for _ in range(count)]
        self.requests: Sequence[Request] = requests
        self.usage = Usage(prompts)
        self._begin("cmpl", "text_completion", "text_completion")

    def opening(self) -> str:
        """Return the first chunks of a stream: none."""
        return ""

    def chunk(self, index: int, update: Update) -> str:
        """Return the chunks of what is new of an answer, "" for nothing."""
        self.usage.add(index, update)
        if self.telling.each:
            self._chunks.with_usage_so_far(self.usage)
        new = self._choices[index].take(update)
        if not new.text and new.logprobs is None and new.finish is None:
            return ""
        return self._chunks.text(index, new.text, new.logprobs, new.finish)
