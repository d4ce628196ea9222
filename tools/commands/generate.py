"""`kvc generate`: continue texts, each in a row of one session.

A single text goes to stdout while it is generated. Several prompts are printed with
their answers when all answers have ended. Why each answer ended, and the speed, go to
stderr. An answer without the form that was asked for is exit code 1.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import click

from kvc.tools.generation_figures import figures_of, is_complete
from kvc.tools.generation_options import (
    form_option,
    form_options,
    generation_options,
    telling_what_is_ignored,
)
from kvc.tools.generation_output import write
from kvc.tools.generation_rows import (
    check_drafts,
    check_rows,
    images_of_prompts,
    limit_beams,
    open_rows,
)
from kvc.tools.inputs import check_text, read_stdin
from kvc.tools.numbers import WholeNumber
from kvc.tools.options import Loading, loading_options, open_program
from kvc.tools.printing import BAD

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
    type=WholeNumber(min=1),
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
    type=WholeNumber(min=1),
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
    type=WholeNumber(min=1),
    metavar="N",
    help="Make N answers to one PROMPT, as a batch; the prompt runs once.",
)
@click.option(
    "--beams",
    type=WholeNumber(min=1),
    metavar="N",
    help="Search for the likeliest text with N beams; it is printed at the end.  "
    "[default of --max-tokens: 256]",
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
    type=WholeNumber(min=0),
    metavar="K",
    help="After the text, print each token with its log probability, and the K "
    "likeliest at its place with theirs.",
)
@click.option(
    "--special-tokens",
    type=click.Choice(["tokens", "text"]),
    default="tokens",
    help="What names of special tokens in PROMPT become.  [default: tokens]",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON for each answer instead of the text.",
)
@click.option("--quiet", is_flag=True, help="No figures, notes and warnings on stderr.")
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
    special_tokens: str,
    as_json: bool,
    quiet: bool,
    loading: Loading,
) -> None:
    """Continue each PROMPT with the model in BUNDLE.

    The text goes to stdout as it is generated (on a terminal after the prompt), until
    the model ends it, the cache is full, or --max-tokens or --stop says so. Speed goes
    to stderr. Options that are not given have the values of the bundle's generation
    config. A PROMPT of - is read from stdin, without a line feed at its end. If the
    bundle has no tokenizer, PROMPT is token ids, such as "1 15 8". A model with an
    encoder, such as one that translates, is given PROMPT there, and its answer is
    printed; one that reads pictures alone is given --image and no PROMPT.

    Several prompts run as one batch, if the bundle allows as many, and are printed
    with their answers when all have ended. So do several --answers to one prompt.

    With --json-schema, --regex, --choice or --grammar the answer has this form, unless
    it ends at a limit of tokens, which is told; the exit code is 1 then.

    Example: kvc generate demo.kvc "def " --max-tokens 40
    """
    began = time.perf_counter()
    check_drafts(draft, draft_tokens, prompt_lookup)
    checked = draft is not None or prompt_lookup
    check_rows(answers, beams, len(prompts), checked, settings)
    _check_prompts(prompts, images, special_tokens)
    texts = [_read(prompt) for prompt in prompts]
    settings["logprobs"], settings["num_beams"] = logprobs, beams
    note = _quiet_note if quiet else _note
    count = answers or beams or len(texts)
    with (
        _without_warnings(quiet),
        open_program(bundle, loading) as program,
        open_rows(program, count, capacity, int(checked)) as rows,
        _guessing(draft, draft_tokens, prompt_lookup, count, loading) as guesser,
    ):
        given = _encoded(program, texts, special_tokens)
        note(limit_beams(rows, settings))
        with telling_what_is_ignored(note):
            if answers is None:
                run = _start(rows, given, settings, guesser, draft_tokens, images)
            else:
                run = _start_answers(rows, given, settings, answers, images)
                texts = texts * answers
        program.pack()  # or the figures would be of that, not of the model
        ready = time.perf_counter() - began
        try:
            write(run, texts, rows, as_json, answers is not None)
        except KeyboardInterrupt:
            note(f"\n{figures_of(run, ready, settings, len(prompts))}")
            raise
        note(figures_of(run, ready, settings, len(prompts)))
        if not form_option(settings) and _is_of_chats(program, texts):
            note("note: the model was made for chats: kvc chat")
        has_form = is_complete(run)
    if not has_form:
        raise click.exceptions.Exit(BAD)


def _note(text: str) -> None:
    if text:
        click.echo(text, err=True)


def _quiet_note(text: str) -> None:
    """Tell nothing."""


@contextmanager
def _without_warnings(quiet: bool) -> Iterator[None]:
    """Ignore all warnings, if `quiet`."""
    if not quiet:
        yield
        return
    with warnings.catch_warnings(action="ignore"):
        yield


def _check_prompts(
    prompts: Sequence[str], images: Sequence[str], special_tokens: str
) -> None:
    """Check that prompts go together, and with pictures.

    Raises:
        click.UsageError: they do not.
    """
    if prompts.count("-") > 1:
        raise click.UsageError("- reads all of stdin, so it can be given once")
    if not prompts and not images:
        raise click.UsageError("Missing argument 'PROMPT...'.")
    if images and special_tokens == "text":
        raise click.UsageError("--special-tokens text goes without --image")


def _read(prompt: str) -> str:
    """Return the prompt; "-" reads it from stdin, without a line feed at its end."""
    if prompt != "-":
        return prompt
    return read_stdin("PROMPT").removesuffix("\n")


def _encoded(
    program: "Program", texts: Sequence[str], special_tokens: str
) -> "Sequence[str | Sequence[int]]":
    """Return prompts: texts, or tokens if names of special tokens are to be text.

    Raises:
        click.UsageError: a text is not UTF-8, though the model reads characters.
        KvcError: as `tokenizer_of` and `plain_tokens`.
    """
    from kvc.runtime.tokenizers import tokenizer_of
    from kvc.runtime.tokenizers.spelled_tokens import plain_tokens

    if not texts:
        return texts
    tokenizer = tokenizer_of(program)
    for text in texts:
        check_text(text, "PROMPT", tokenizer)
    if special_tokens == "tokens":
        return texts
    return [plain_tokens(tokenizer, text) for text in texts]


@contextmanager
def _guessing(
    draft: str | None,
    draft_tokens: int | None,
    prompt_lookup: bool,
    rows: int,
    loading: Loading,
) -> "Iterator[Session | Literal['prompt'] | None]":
    """Return what guesses tokens: the session of a draft, the text, or nothing."""
    if draft is None:
        yield "prompt" if prompt_lookup else None
        return
    kept = draft_tokens or _KEPT_CALLS
    with (
        open_program(draft, replace(loading, adapter=None)) as program,
        open_rows(program, rows, None, kept, "the draft's bundle") as session,
    ):
        program.pack()
        yield session


def _start(
    session: "Session",
    prompts: "Sequence[str | Sequence[int]]",
    settings: "Arguments",
    draft: "Session | Literal['prompt'] | None",
    draft_tokens: int | None,
    images: Sequence[str],
) -> "Generation | BatchGeneration":
    """Return a generation.

    Raises:
        KvcError: as `kvc.runtime.generate`.
    """
    from kvc.runtime import generate

    if len(prompts) > 1:
        given = images_of_prompts(session, prompts, images)
        return generate(
            session,
            prompts,
            images=given,
            draft=draft,
            draft_tokens=draft_tokens,
            **settings,
        )
    return generate(
        session,
        prompts[0] if prompts else None,
        images=images,
        draft=draft,
        draft_tokens=draft_tokens,
        **settings,
    )


def _start_answers(
    session: "Session",
    prompts: "Sequence[str | Sequence[int]]",
    settings: "Arguments",
    answers: int,
    images: Sequence[str],
) -> "BatchGeneration":
    """Return a generation of several answers to one text; as `_start` otherwise."""
    from kvc.runtime import generate

    prompt = prompts[0] if prompts else None
    return generate(session, prompt, n=answers, images=images, **settings)


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
