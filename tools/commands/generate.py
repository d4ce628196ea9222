"""`kvc generate`: continue a text, streaming to stdout."""

import sys
import time
from typing import TYPE_CHECKING

import click

from kvc.tools.loading import Loading, loading_options, open_program

if TYPE_CHECKING:
    from kvc.runtime import Generation, Program
    from kvc.tools.tokenizers import Tokenizer


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.argument("prompt", metavar="PROMPT")
@click.option(
    "--max-tokens",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="Stop after N tokens.  [default: when the model ends or the cache is full]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    metavar="T",
    help="0 always takes the likeliest token.  [default: the bundle's setting, or 0]",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=1),
    metavar="K",
    help="Choose among the K likeliest.  [default: the bundle's setting, or all]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="S",
    help="Make the choices of --temperature repeatable.",
)
@loading_options
def generate(
    bundle: str,
    prompt: str,
    max_tokens: int | None,
    temperature: float | None,
    top_k: int | None,
    seed: int | None,
    loading: Loading,
) -> None:
    """Continue PROMPT with the model in BUNDLE.

    What is generated goes to stdout as it is made (on a terminal with the prompt
    before it), until the model ends the text, the cache is full, or --max-tokens.
    Speed goes to stderr. Where the bundle has no tokenizer, PROMPT is token ids.
    """
    from kvc.runtime import generate as start
    from kvc.tools.settings import sampling_of, stop_tokens_of
    from kvc.tools.tokenizers import tokenizer_of

    began = time.perf_counter()
    with open_program(bundle, loading) as program, program.session() as session:
        tokenizer = tokenizer_of(program.metadata)
        sampling = sampling_of(program.metadata)
        tokens = start(
            session,
            tokenizer.encode(prompt),
            max_tokens=sys.maxsize if max_tokens is None else max_tokens,
            temperature=sampling.temperature if temperature is None else temperature,
            top_k=sampling.top_k if top_k is None else top_k,
            seed=seed,
            stop_tokens=stop_tokens_of(program.metadata),
        )
        _warm_up(program)
        ready = time.perf_counter() - began
        _stream(tokens, tokenizer, prompt)
        click.echo(_figures(tokens, ready), err=True)


def _warm_up(program: "Program") -> None:
    """Run each method once in a session of its own.

    What is loaded or packed on first need is then done, and the figures are those of
    the model.
    """
    from kvc.runtime import generate as start

    with program.session() as session:
        for _ in start(session, [0], max_tokens=2):
            pass


def _stream(tokens: "Generation", tokenizer: "Tokenizer", prompt: str) -> None:
    """Write each token as it comes; a terminal gets prompt and line end, too."""
    out = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        click.echo(prompt, nl=False)
    for token in tokens:
        out.write(tokenizer.decode(token))
        out.flush()
    click.echo(err=not is_terminal)


def _figures(tokens: "Generation", ready: float) -> str:
    prefill, decode = tokens.prefill, tokens.decode
    why = {
        "stop": "the model ended the text",
        "length": "the cache is full",
        "max_tokens": "--max-tokens was reached",
    }
    return (
        f"ready after {ready:.1f} s; "
        f"prefill {prefill.tokens_per_second:.1f} tokens/s ({prefill.tokens} tokens), "
        f"decode {decode.tokens_per_second:.1f} tokens/s ({decode.tokens} tokens); "
        f"{why[tokens.reason or 'stop']}"
    )
