"""What `kvc generate` writes to stdout: texts, log probabilities, or JSON.

In: a generation. Out: a single text while it is generated; several texts, log
probabilities and JSON when all answers have ended, also where Ctrl-C ends them.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from kvc.tools.printing import VERSIONS, json_text

if TYPE_CHECKING:
    from kvc.runtime import BatchGeneration, Generation, Session, TokenLogprob


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """An answer of `kvc generate`.

    Attributes:
        prompt: the index of the prompt.
        text: the text, cut before a stop string.
        tokens: the tokens, without a stop token.
        reason: `stop`, `stop_string`, `length` or `max_tokens`, as `Generation.reason`;
            null for an answer that was interrupted.
        is_complete: whether the answer has the form that was asked for; null without a
            form.
        score: of an answer that a search for beams has found.
        logprobs: of each token, with `--logprobs`; null without it.
    """

    prompt: int
    text: str
    tokens: list[int]
    reason: str | None
    is_complete: bool | None
    score: float | None
    logprobs: "list[LogprobReport] | None"


@dataclass(frozen=True, slots=True)
class LogprobReport:
    """The log probability of a token.

    Attributes:
        token: the token.
        text: its text, without the tokens around it.
        logprob: its log probability.
        top: the likeliest tokens at its place, each with its log probability.
    """

    token: int
    text: str
    logprob: float
    top: list[tuple[int, float]]


def write(
    run: "Generation | BatchGeneration",
    prompts: Sequence[str],
    session: "Session",
    as_json: bool,
    of_one: bool,
) -> None:
    """Run a generation to its end, and write the answers and what else is asked for.

    Args:
        run: the generation.
        prompts: the prompt of each answer.
        session: its session.
        as_json: whether to write a line of JSON for each answer.
        of_one: whether all answers are to the first prompt.
    """
    if not as_json:
        _show(run, prompts, session)
        _show_logprobs(run, session)
        return
    try:
        for _ in run:
            pass
    finally:  # what there is
        run.close()
        for report in _reports(run, session, of_one):
            fields = {"version": VERSIONS["generate"], **asdict(report)}
            click.echo(json_text(fields))


def _reports(
    run: "Generation | BatchGeneration", session: "Session", of_one: bool
) -> Iterator[AnswerReport]:
    for number, row in enumerate(_rows(run)):
        text, tokens, reason, complete, logprobs = row
        asked = run.settings.logprobs is not None
        yield AnswerReport(
            prompt=0 if of_one else number,
            text=text,
            tokens=list(tokens),
            reason=reason,
            is_complete=complete,
            score=getattr(run, "score", None),
            logprobs=_logprob_reports(logprobs, session) if asked else None,
        )


_Row = tuple[str, Sequence[int], str | None, bool | None, "Sequence[TokenLogprob]"]


def _rows(run: "Generation | BatchGeneration") -> Iterator[_Row]:
    """Yield for each answer its text, tokens, end, completeness, log probabilities."""
    from kvc.runtime import Generation

    if isinstance(run, Generation):
        text = "".join(run.text())
        yield text, run.tokens, run.reason, run.is_complete, run.logprobs
        return
    yield from zip(
        run.texts(), run.tokens, run.reason, run.is_complete, run.logprobs, strict=True
    )


def _logprob_reports(
    row: "Sequence[TokenLogprob]", session: "Session"
) -> list[LogprobReport]:
    spell = _Speller(session)
    return [
        LogprobReport(one.token, spell(one.token), one.logprob, list(one.top))
        for one in row
    ]


class _Speller:
    """Spells tokens."""

    def __init__(self, session: "Session") -> None:
        from kvc.runtime.tokenizers import tokenizer_of

        self._tokenizer = tokenizer_of(session)

    def __call__(self, token: int) -> str:
        return self.text([token])

    def text(self, tokens: Sequence[int]) -> str:
        stream = self._tokenizer.stream()
        return "".join(map(stream.push, tokens)) + stream.finish()


def _show(
    run: "Generation | BatchGeneration", prompts: Sequence[str], session: "Session"
) -> None:
    """Write a single text while it is generated, or all prompts and texts at the end.

    On a terminal, a single text is printed with its prompt and a final line feed. Of a
    search for beams that is interrupted, the best text so far is written.
    """
    from kvc.runtime import Generation

    out, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    if isinstance(run, Generation):
        if is_terminal and prompts:
            click.echo(prompts[0], nl=False)
        try:
            for piece in run.text():
                out.write(piece.encode("utf-8", "replace"))
                out.flush()
        except KeyboardInterrupt:
            if not run.tokens:
                out.write(_Speller(session).text(run.found).encode("utf-8", "replace"))
                out.flush()
            raise
        out.write(b"\n")
        out.flush()
        return
    try:
        run.texts()
    finally:  # what there is
        run.close()
        answers = zip(prompts, run.texts(), strict=True)
        shown = "\n".join(f"{_quoted(prompt)}\n{text}\n" for prompt, text in answers)
        out.write(shown.encode("utf-8", "replace"))
        out.flush()


def _quoted(prompt: str) -> str:
    """Return a prompt with a mark before each of its lines."""
    return "\n".join(f"> {line}" for line in prompt.split("\n"))


def _show_logprobs(run: "Generation | BatchGeneration", session: "Session") -> None:
    """Write a line for each token: its log probability, its text, and the likeliest.

    Nothing is written if no log probabilities were asked for.
    """
    from kvc.runtime import Generation

    spell = _Speller(session)

    def spelled(token: int) -> str:
        return json.dumps(spell(token), ensure_ascii=False)

    rows = [run.logprobs] if isinstance(run, Generation) else run.logprobs
    rows = rows if any(rows) else []
    for number, row in enumerate(rows):
        if len(rows) > 1:
            click.echo(f"log probabilities of answer {number + 1}")
        for one in row:
            others = "  ".join(f"{spelled(t)} {chance:.3f}" for t, chance in one.top)
            line = (
                f"{one.logprob:9.3f}  {one.token:7d}  {spelled(one.token):16}{others}"
            )
            click.echo(line.rstrip())
