"""Options of commands that generate text: how tokens are chosen, when to stop.

A command decorated with `generation_options` gets them as one argument, `settings`, for
`kvc.runtime.generate`. Settings that are left out are the bundle's.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvc.runtime.generation import Arguments

_SHARE = click.FloatRange(min=0, max=1)


def generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which takes them as `settings`."""

    @click.option(
        "--max-tokens",
        "-n",
        type=click.IntRange(min=0),
        metavar="N",
        help="Stop after N tokens.  [default: the bundle's setting, or no limit]",
    )
    @click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        metavar="T",
        help="Sampling temperature; 0 always takes the likeliest token.  [default: the "
        "bundle's setting, or 0]",
    )
    @click.option(
        "--top-k",
        type=click.IntRange(min=0),
        metavar="K",
        help="Sample from the K likeliest tokens; 0 for all.",
    )
    @click.option(
        "--top-p",
        type=_SHARE,
        metavar="P",
        help="Sample from the likeliest tokens whose probabilities add up to P.",
    )
    @click.option(
        "--min-p",
        type=_SHARE,
        metavar="P",
        help="Sample from the tokens at least P times as likely as the likeliest.",
    )
    @click.option(
        "--repetition-penalty",
        type=click.FloatRange(min=0, min_open=True),
        metavar="R",
        help="Above 1: tokens that were there before become less likely.",
    )
    @click.option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="S",
        help="Seed of the random numbers; the same seed gives the same text.",
    )
    @click.option(
        "--stop",
        "stop_strings",
        multiple=True,
        metavar="TEXT",
        help="Stop before TEXT. Repeatable.",
    )
    @click.option(
        "--forced-bos",
        "forced_bos_token_id",
        type=click.IntRange(min=0),
        metavar="TOKEN",
        help="The token after the first, such as the language to translate into, of a "
        "model with an encoder.  [default: the bundle's setting]",
    )
    @wraps(command)
    def with_settings(
        max_tokens: int | None,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        min_p: float | None,
        repetition_penalty: float | None,
        seed: int | None,
        stop_strings: tuple[str, ...],
        forced_bos_token_id: int | None,
        **others: object,
    ) -> None:
        settings: Arguments = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop_strings": stop_strings or None,
            "forced_bos_token_id": forced_bos_token_id,
        }
        command(settings=settings, **others)

    return with_settings


@contextmanager
def telling_what_is_ignored() -> Iterator[None]:
    """Say on stderr what a generation that is started in here warns of."""
    from kvc.runtime import BegunTwice, SettingIgnored

    with warnings.catch_warnings(record=True) as caught:
        for kind in (BegunTwice, SettingIgnored):
            warnings.simplefilter("always", kind)
        yield
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)
