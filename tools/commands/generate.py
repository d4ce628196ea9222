"""`kvc generate`: continue texts, each in a row of one session.

A single text goes to stdout while it is generated. Several prompts are printed with
their answers when all answers have ended. Why each answer ended, and the speed, go to
stderr.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import click

from kvc.tools.generation_figures import figures_of
from kvc.tools.generation_options import (
    form_options,
    generation_options,
    telling_what_is_ignored,
)
from kvc.tools.generation_rows import open_rows
from kvc.tools.options import Loading, loading_options, open_program

if TYPE_CHECKING:
    from kvc.runtime import BatchGeneration, Generation, Program, Session
    from kvc.runtime.generation import Arguments

_KEPT_CALLS: Final = 8  # of a draft with recurrent layers; twice the usual guesses


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.argument("prompts", metavar="PROMPT...", nargs=-1)
@form_options
@generation_options
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many tokens the cache holds, prompt and answer together.  [default: the "
    "most the bundle allows]",
)
@click.option(
    "--draft",
    metavar="BUNDLE",
    help="A small draft model with the same tokens, for speculative decoding: the same "
    "text, faster if most of its guesses are right.",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many tokens the draft model guesses at a time.  [default: 4]",
)
@click.option(
    "--prompt-lookup",
    is_flag=True,
    help="Guess that the text goes on as it did after the same tokens before: the same "
    "text, faster if it repeats much. The bundle needs --all-logits.",
)
@click.option(
    "--answers",
    "-N",
    type=click.IntRange(min=1),
    metavar="N",
    help="Make N answers to one PROMPT, as a batch; the prompt runs once.",
)
@click.option(
    "--beams",
    type=click.IntRange(min=1),
    metavar="N",
    help="Search for the likeliest text with N beams; it is printed at the end.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE",
    help="A picture, for the first <image> of PROMPT, or what else the model has for "
    "one; repeatable, in the order of the text, and of several PROMPTs. A model that "
    "only reads pictures takes one, and no PROMPT.",
)
@click.option(
    "--logprobs",
    type=click.IntRange(min=0),
    metavar="K",
    help="After the text, print each token with its log probability, and the K "
    "likeliest at its place with theirs.",
)
@loading_options
def generate(
    bundle: str,
    prompts: tuple[str, ...],
    settings: "Arguments",
    capacity: int | None,
    draft: str | None,
    draft_tokens: int | None,
    prompt_lookup: bool,
    answers: int | None,
    beams: int | None,
    images: tuple[str, ...],
    logprobs: int | None,
    loading: Loading,
) -> None:
    """Continue each PROMPT with the model in BUNDLE.

    The text goes to stdout as it is generated (on a terminal after the prompt), until
    the model ends it, the cache is full, or --max-tokens or --stop says so. Speed goes
    to stderr. Options that are not given have the values of the bundle's generation
    config. A PROMPT of - is read from stdin. If the bundle has no tokenizer, PROMPT is
    token ids, such as "1 15 8". A model with an encoder, such as one that translates,
    is given PROMPT there, and its answer is printed; one that reads pictures alone is
    given --image and no PROMPT.

    Several prompts run as one batch, if the bundle allows as many, and are printed
    with their answers when all have ended. So do several --answers to one prompt.

    With --json-schema, --regex, --choice or --grammar the answer has this form, unless
    it ends at a limit of tokens, which is told.

    Example: kvc generate demo.kvc "def " --max-tokens 40
    """
    began = time.perf_counter()
    _check_drafts(draft, draft_tokens, prompt_lookup)
    checked = draft is not None or prompt_lookup
    _check_rows(answers, beams, len(prompts), checked)
    if prompts.count("-") > 1:
        raise click.UsageError("- reads all of stdin, so it can be given once")
    if not prompts and not images:
        raise click.UsageError("Missing argument 'PROMPT...'.")
    texts = [_read(prompt) for prompt in prompts]
    settings["logprobs"], settings["num_beams"] = logprobs, beams
    with ExitStack() as stack:
        program = stack.enter_context(open_program(bundle, loading))
        rows = answers or beams or len(texts) or 1
        opened = open_rows(program, rows, capacity, int(checked))
        session = stack.enter_context(opened)
        draft_program = draft_session = None
        if draft is not None:
            plain = replace(loading, adapter=None)
            draft_program = stack.enter_context(open_program(draft, plain))
            kept = draft_tokens or _KEPT_CALLS
            opened = open_rows(draft_program, rows, None, kept, "the draft's bundle")
            draft_session = stack.enter_context(opened)
        guesser: Session | Literal["prompt"] | None = draft_session
        guesser = "prompt" if prompt_lookup else guesser
        if answers is None:
            run = _start(session, texts, settings, guesser, draft_tokens, images)
        else:
            run = _start_answers(session, texts, settings, answers, images)
            texts = texts * answers
        for each in (program, draft_program):
            if each is not None:
                each.pack()  # or the figures would be of that, not of the model
        ready = time.perf_counter() - began
        try:
            _show(run, texts)
        except KeyboardInterrupt:
            click.echo(f"\n{figures_of(run, ready, settings, len(prompts))}", err=True)
            raise
        _show_logprobs(run, session)
        click.echo(figures_of(run, ready, settings, len(prompts)), err=True)
        if _is_of_chats(program, texts):
            click.echo("note: the model was made for chats: kvc chat", err=True)


def _check_drafts(
    draft: str | None, draft_tokens: int | None, prompt_lookup: bool
) -> None:
    """Check that the options of drafts fit each other.

    Raises:
        click.UsageError: they do not.
    """
    if draft is not None and prompt_lookup:
        raise click.UsageError("--prompt-lookup takes the place of --draft")
    if draft is None and not prompt_lookup and draft_tokens is not None:
        raise click.UsageError("--draft-tokens needs --draft or --prompt-lookup")


def _check_rows(
    answers: int | None, beams: int | None, prompts: int, checked: bool
) -> None:
    """Check that the options of several rows fit the others.

    Raises:
        click.UsageError: they do not.
    """
    if answers is not None and beams is not None:
        raise click.UsageError("--beams finds one answer, so not with --answers")
    name = "--answers" if answers is not None else "--beams"
    if (answers or beams) and prompts > 1:
        raise click.UsageError(f"{name} takes one PROMPT")
    if (answers or beams) and checked:
        raise click.UsageError(f"{name} goes without a draft and --prompt-lookup")


def _read(prompt: str) -> str:
    """Return the prompt; "-" reads it from stdin, without any change."""
    if prompt != "-":
        return prompt
    if sys.stdin is None:
        raise click.ClickException("stdin is closed; give the prompt as an argument")
    return os.fsdecode(sys.stdin.buffer.read())


def _start(
    session: "Session",
    texts: Sequence[str],
    settings: "Arguments",
    draft: "Session | Literal['prompt'] | None",
    draft_tokens: int | None,
    images: Sequence[str],
) -> "Generation | BatchGeneration":
    """Return a generation; print on stderr which settings it ignores.

    Raises:
        KvcError: as `kvc.runtime.generate`.
    """
    from kvc.runtime import generate

    with telling_what_is_ignored():
        if len(texts) > 1:
            given = _of_prompts(session, texts, images)
            return generate(
                session,
                texts,
                images=given,
                draft=draft,
                draft_tokens=draft_tokens,
                **settings,
            )
        return generate(
            session,
            texts[0] if texts else None,
            images=images,
            draft=draft,
            draft_tokens=draft_tokens,
            **settings,
        )


def _start_answers(
    session: "Session",
    texts: Sequence[str],
    settings: "Arguments",
    answers: int,
    images: Sequence[str],
) -> "BatchGeneration":
    """Return a generation of several answers to one text; as `_start` otherwise."""
    from kvc.runtime import generate

    with telling_what_is_ignored():
        prompt = texts[0] if texts else None
        return generate(session, prompt, n=answers, images=images, **settings)


def _of_prompts(
    session: "Session", texts: Sequence[str], images: Sequence[str]
) -> Sequence[Sequence[str]]:
    """Return the pictures that belong to each text, in order.

    A text with markers of pictures gets as many as it has markers. The last text gets
    all that remain.

    Raises:
        KvcError: the bundle's description of pictures is invalid.
    """
    from kvc.runtime.generation.picture_places import places_of

    places = places_of(session) if images else None
    given, left = list[Sequence[str]](), list(images)
    for text in texts:
        count = 0 if places is None else places.count_in(text)
        given.append(left[:count])
        left = left[count:]
    return [*given[:-1], [*given[-1], *left]]


def _show(run: "Generation | BatchGeneration", prompts: Sequence[str]) -> None:
    """Write a single text while it is generated, or all prompts and texts at the end.

    On a terminal, a single text is printed with its prompt and a final line feed.
    """
    from kvc.runtime import Generation

    out, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    if isinstance(run, Generation):
        if is_terminal and prompts:
            click.echo(prompts[0], nl=False)
        for piece in run.text():
            out.write(piece.encode("utf-8", "replace"))
            out.flush()
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
    from kvc.runtime.tokenizers import tokenizer_of

    tokenizer = tokenizer_of(session)

    def spelled(token: int) -> str:
        stream = tokenizer.stream()
        return json.dumps(stream.push(token) + stream.finish(), ensure_ascii=False)

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


def _is_of_chats(program: "Program", texts: Sequence[str]) -> bool:
    """Tell whether a plain text was given to a model whose bundle has a chat template.

    A text that has the template's special tokens was rendered by it.
    """
    from kvc.runtime import KvcError
    from kvc.runtime.tokenizers import chat_template_of

    try:
        template = chat_template_of(program)
    except KvcError:
        return False
    if template is None:
        return False
    marks = [mark for mark in template.special_tokens.values() if mark]
    return not any(mark in text for mark in marks for text in texts)
