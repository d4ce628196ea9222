"""Requests to a scheduler, and what their listeners hear."""

import threading

from kvc.runtime import generate
from kvc.runtime.generation import GenerationSettings
from kvc.serving.scheduling import Request

SHORT = GenerationSettings(max_tokens=6)


class Heard:
    """The updates of one request."""

    def __init__(self):
        self.updates, self._over = [], threading.Event()
        self.first = threading.Event()

    def __call__(self, update):
        self.updates.append(update)
        self.first.set()
        if update.ending is not None:
            self._over.set()

    @property
    def tokens(self):
        return [token for update in self.updates for token in update.tokens]

    @property
    def last(self):
        assert self._over.wait(60), "the request has no end"
        return self.updates[-1]


def ask(scheduler, prompt, settings=SHORT, **fields):
    heard = Heard()
    heard.ticket = scheduler.submit(Request(prompt, settings, **fields), heard)
    return heard


def alone(program, prompt, settings=SHORT, **session):
    """Return the tokens of a prompt, and why they end, as `generate` has them."""
    asked = {
        name: getattr(settings, name)
        for name in ("max_tokens", "temperature", "top_k", "seed", "stop_tokens")
        if getattr(settings, name) is not None
    }
    with program.session(**session) as one:
        run = generate(one, list(prompt), **asked)
        return list(run), run.reason


def assert_as_alone(program, heard, prompt, settings=SHORT, **session):
    expected = alone(program, prompt, settings, **session)
    assert (heard.last.ending, heard.tokens) == (expected[1], expected[0])
