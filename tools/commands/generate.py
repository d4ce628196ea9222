"""`kvc generate`: continue a text, streaming to stdout."""

import os
import sys
import time
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from kvc.tools.batches import count_rows, open_rows, print_batch
from kvc.tools.loading import Loading, loading_options, open_program
from kvc.tools.sampling import generation_options, start_generation

if TYPE_CHECKING:
    from kvc.runtime import Generation, Program
    from kvc.runtime.generation import Arguments


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@generation_options
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    metavar="N",
    help="Let prompt and answer have N tokens.  [default: the most the bundle allows]",
)
@click.option(
    "--draft",
    metavar="BUNDLE",
    help="A smaller model with the same tokens, which guesses several at a time for "
    "the other to check: the same text, sooner where most guesses are right.",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Let it guess N tokens at a time.  [default: 4]",
)
@loading_options
def generate(
    bundle: str,
    prompts: tuple[str, ...],
    settings: "Arguments",
    capacity: int | None,
    draft: str | None,
    draft_tokens: int | None,
    loading: Loading,
) -> None:
    """Continue each PROMPT with the model in BUNDLE; - reads one from stdin.

    What is generated goes to stdout as it is made (on a terminal with the prompt
    before it), until the model ends the text, the cache is full, --max-tokens, or
    --stop. Speed goes to stderr. What is left out is as the bundle says. Where it has
    no tokenizer, PROMPT is token ids.

    Several prompts run at once, where the bundle takes as many, and are printed with
    their answers when all have ended.
    """
    if draft is None and draft_tokens is not None:
        raise click.UsageError("--draft-tokens needs --draft")
    began = time.perf_counter()
    if prompts.count("-") > 1:
        raise click.UsageError("- reads all of stdin, so it can be given once")
    if draft is not None and len(prompts) > 1:
        raise click.UsageError("--draft guesses for one PROMPT")
    texts = [_read(prompt) for prompt in prompts]
    if len(texts) > 1:
        with (
            open_program(bundle, loading) as program,
            open_rows(program, len(texts), capacity) as session,
        ):
            _warm_up(program)
            print_batch(session, texts, settings, began)
        return
    (text,) = texts
    with ExitStack() as stack:
        program = stack.enter_context(open_program(bundle, loading))
        session = stack.enter_context(program.session(capacity=capacity))
        guessing = guesser = None
        if draft is not None:
            guessing = stack.enter_context(open_program(draft, loading))
            guesser = stack.enter_context(guessing.session())
        run = start_generation(session, text, settings, guesser, draft_tokens)
        _warm_up(program, guessing)
        ready = time.perf_counter() - began
        try:
            _stream(run, text)
        except KeyboardInterrupt:
            click.echo(err=True)
            click.echo(_figures(run, ready, "interrupted"), err=True)
            raise
        click.echo(_figures(run, ready, _why(run, settings)), err=True)


def _read(prompt: str) -> str:
    """Return the prompt; stdin gives it exactly as it comes, as an argument would."""
    if prompt != "-":
        return prompt
    if sys.stdin is None:
        raise click.ClickException("stdin is closed; give the prompt as an argument")
    return os.fsdecode(sys.stdin.buffer.read())


def _warm_up(program: "Program", draft: "Program | None" = None) -> None:
    """Run each method that is needed once, in sessions of their own.

    What is loaded or packed on first need is then done, and the figures are those of
    the model.
    """
    from kvc.runtime import SettingIgnored
    from kvc.runtime import generate as start

    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingIgnored)
        session = stack.enter_context(program.session())
        guesser = None if draft is None else stack.enter_context(draft.session())
        most = 2 if draft is None else 4  # of which two are guessed
        plain: Arguments = {"max_tokens": most, "stop_tokens": [], "stop_strings": []}
        if (rows := count_rows(session)) > 1:
            for _ in start(session, [[0]] * rows, **plain):
                pass
            return
        for _ in start(session, [0], draft=guesser, **plain):
            pass


def _stream(run: "Generation", prompt: str) -> None:
    """Write the text as it comes; a terminal gets prompt and line end, too."""
    out = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        click.echo(prompt, nl=False)
    for piece in run.text():
        out.write(piece.encode("utf-8", "replace"))
        out.flush()
    click.echo(err=not is_terminal)


def _why(run: "Generation", settings: "Arguments") -> str:
    match run.reason:
        case "stop":
            return "the model ended the text"
        case "stop_string":
            return "a stop string came"
        case "length":
            return "the cache is full"
        case _ if settings.get("max_tokens") is None:
            return "the bundle's limit of tokens was reached"
    return "--max-tokens was reached"


def _figures(run: "Generation", ready: float, why: str) -> str:
    prefill, decode, first = run.prefill, run.decode, run.time_to_first_token
    guessed = ""
    if run.drafted:
        guessed = (
            f"{run.accepted} of {run.drafted} guesses right ({run.acceptance:.0%}); "
        )
    waited = "" if first is None else f"first token {first:.2f} s later; "
    return (
        f"ready after {ready:.1f} s; {waited}"
        f"prefill {prefill.tokens_per_second:.1f} tokens/s ({prefill.tokens} tokens), "
        f"decode {decode.tokens_per_second:.1f} tokens/s ({decode.tokens} tokens); "
        f"{guessed}{why}"
    )
