"""Loads for a server: clients that ask at once, or a chat of two turns.

In: a place that answers, sizes. Out: figures, as `serving.py` tells them.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from serving_client import CHAT, COMPLETIONS, Answered, Place, ask
from serving_figures import Took, figures_of
from serving_processes import busy_seconds, peak_nbytes, processor_seconds
from serving_prompts import Counting, counting, text

Told = dict[str, Any]
FEW, MANY = 40, 140  # words of the prompts that tell how tokens are counted


@dataclass(slots=True)
class Load:
    """What clients ask for.

    Attributes:
        clients: the numbers of clients, one load after the other.
        requests: how many requests each client sends.
        prompt: tokens of a prompt.
        answer: tokens of an answer.
        shared: tokens of the system prompt that all share.
        completions: whether prompts are texts without a chat template.
        counting: how the first server counts tokens; None before it is known.
    """

    clients: tuple[int, ...]
    requests: int
    prompt: int
    answer: int
    shared: int
    completions: bool
    counting: Counting | None = None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return the load that the options describe."""
        sizes = (options.requests, options.prompt, options.answer, options.shared)
        return cls(tuple(options.clients), *sizes, options.completions)

    @property
    def path(self) -> str:
        """Return the path of requests."""
        return COMPLETIONS if self.completions else CHAT

    def body(self, place: Place, words: int, seed: str) -> Mapping[str, object]:
        """Return the body of a request with a prompt of words."""
        prompt, system = text(words, seed), self._system()
        asked: dict[str, object] = {"temperature": 0, "max_tokens": self.answer}
        asked |= place.extra
        if self.completions:
            return asked | {"prompt": f"{system} {prompt}".strip()}
        messages = [{"role": "user", "content": prompt}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return asked | {"messages": messages}

    def _system(self) -> str:
        if not self.shared or self.counting is None:
            return ""
        return text(round(self.shared / self.counting.each), "shared")

    @property
    def words(self) -> int:
        """Return how many words a prompt has."""
        assert self.counting is not None
        return self.counting.words(self.prompt)

    def count_words(self, place: Place) -> None:
        """Ask a server how many tokens words are; it is warm after that.

        The first server's counts are for all: all get the same prompts.

        Raises:
            SystemExit: it does not answer.
        """
        probe = replace(self, shared=0, answer=8)
        place = replace(place, extra=_shorter(place.extra, 8))
        counts = []
        for words in (FEW, MANY):
            body = probe.body(place, words, f"probe {words}")
            answered = asyncio.run(ask(place, self.path, body))
            if answered.failure:
                raise SystemExit(f"the server does not answer: {answered.failure}")
            counts.append((words, answered.prompt))
        if self.counting is None:
            self.counting = counting(*counts)


def _shorter(extra: Mapping[str, object], tokens: int) -> Mapping[str, object]:
    return {
        name: min(value, tokens) if type(value) is int else value
        for name, value in extra.items()
    }


def load_figures(load: Load, place: Place, pid: int | None, number: int) -> Told:
    """Return the figures of a server for each number of clients, in a round."""
    loads = {}
    for count in load.clients:
        before = _clocks(pid)
        answers = asyncio.run(_clients(load, place, count, number))
        server, client, busy = (
            b - a for a, b in zip(before, _clocks(pid), strict=True)
        )
        peak = peak_nbytes(pid) if pid else float("nan")
        took = Took(server, client, max(0.0, busy - server - client), peak)
        loads[str(count)] = figures_of(answers, count, load.answer, took)
    return {"loads": loads}


def _clocks(pid: int | None) -> tuple[float, float, float]:
    """Return processor seconds: of the server, of this process, of the machine."""
    server = processor_seconds(pid) if pid else float("nan")
    return server, time.process_time(), busy_seconds()


async def _clients(load: Load, place: Place, count: int, number: int) -> list[Answered]:
    async def client(index: int) -> list[Answered]:
        answers = []
        for turn in range(load.requests):
            seed = f"round {number}, {count} clients, client {index}, request {turn}"
            body = load.body(place, load.words, seed)
            answers.append(await ask(place, load.path, body))
        return answers

    groups = await asyncio.gather(*map(client, range(count)))
    return [one for group in groups for one in group]


def turn_times(load: Load, place: Place, number: int) -> Told:
    """Return the times to the first token of two turns of a chat.

    Raises:
        SystemExit: a turn failed.
    """
    body = dict(load.body(place, load.words, f"turns {number}"))
    first = asyncio.run(ask(place, CHAT, body))
    messages = list(body["messages"])  # type: ignore[call-overload]
    messages.append({"role": "assistant", "content": first.text})
    messages.append({"role": "user", "content": text(30, f"second turn {number}")})
    second = asyncio.run(ask(place, CHAT, body | {"messages": messages}))
    told: Told = {}
    for turn, answered in enumerate((first, second), 1):
        if answered.failure:
            raise SystemExit(f"turn {turn} failed: {answered.failure}")
        told[f"first_{turn}_s"] = answered.pieces[0] - answered.begun
        told[f"prompt_{turn}"] = answered.prompt
        told[f"reused_{turn}"] = answered.reused
    return told
