"""`kvc generate`: continue a text, streaming to stdout."""

import click


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.argument("prompt")
@click.option(
    "--max-tokens", "-n", default=256, show_default=True, type=click.IntRange(min=0)
)
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="0 always takes the likeliest token.",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Sample among the k likeliest.")
@click.option("--seed", type=int, help="Makes sampling repeatable.")
def generate(
    bundle: str,
    prompt: str,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int | None,
) -> None:
    """Continue PROMPT with the model in BUNDLE.

    The text goes to stdout as it is made, the prompt first, until the model ends it,
    the cache is full, or --max-tokens is reached. Speed goes to stderr.
    """
    raise NotImplementedError
