"""`kvc eval`: measure how well bundles predict a text.

`evaluate` measures an open program on the bytes of a text; `table` prints the results.
"""

import codecs
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import BadSetting, FileProblem, reason_of
from kvc.schema.text import columns, escape, size
from kvc.tools.options import Loading, loading_options, open_program
from kvc.tools.printing import report_text

if TYPE_CHECKING:
    from kvc.runtime import Program
    from kvc.runtime.scoring.score import ScoreProgress
    from kvc.runtime.tokenizers import Tokenizer


@click.command("eval")
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True)
@click.argument("file", metavar="FILE")
@click.option(
    "--window",
    type=click.IntRange(min=2),
    metavar="N",
    help="Length of the sliding window, in tokens.  [default: 1024, or the cache's "
    "capacity if that is less]",
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    metavar="N",
    help="By how many tokens the window moves; each token is scored once.  [default: "
    "half a window]",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read only the first N bytes of FILE.",
)
@click.option(
    "--against",
    metavar="BUNDLE",
    help="Compare what each BUNDLE expects of every token with what this one does, "
    "such as the same model by cpu_fp32.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@loading_options
def eval_command(
    bundles: tuple[str, ...],
    file: str,
    window: int | None,
    stride: int | None,
    max_bytes: int | None,
    against: str | None,
    as_json: bool,
    loading: Loading,
) -> None:
    """Measure how well each BUNDLE predicts the text in FILE.

    Prints bits per byte and perplexity per token; lower is better. Bits per byte can be
    compared between models with different tokenizers, perplexity cannot. A bundle with
    a method of the role prefill_all is evaluated in chunks, any other token by token.
    Speed is measured after a first call, and without loading.

    With --against, two more figures compare each BUNDLE with that bundle: the
    Kullback-Leibler divergence in nats per token, with its standard error, and how
    often both find the same token likeliest. These tell recipes apart even on a short
    text.

    Example: kvc eval --against fp32.kvc q8.kvc q4.kvc text.txt
    """
    from kvc.tools.progress import Stages

    raw = _read(file, max_bytes)
    found = []
    with Stages(quiet=False) as stages, ExitStack() as opened:
        other = against and opened.enter_context(open_program(against, loading))
        for bundle in bundles:
            show = partial(stages.show, bundle)
            with open_program(bundle, loading) as program:
                found.append(
                    evaluate(bundle, program, raw, window, stride, show, other or None)
                )
    if as_json:
        report = {"file": file, "bundles": [asdict(one) for one in found]}
        click.echo(report_text("eval", report))
    else:
        click.echo("\n".join(table(found)))


def _read(file: str, most: int | None) -> bytes:
    """Return the first `most` bytes of a file, the whole file for None.

    Raises:
        FileProblem: the file cannot be read.
    """
    try:
        with open(file, "rb") as text:  # noqa: PTH123  "" would be "."
            return text.read(-1 if most is None else most)
    except (OSError, ValueError) as error:
        raise FileProblem(path=file, reason=reason_of(error)) from error


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a bundle predicts a text.

    Attributes:
        bundle, recipe: path of the bundle, and name of its recipe.
        weights_nbytes: bytes of the weights, each weight once.
        bits_per_byte: mean bits for each byte of text; null if the bundle has no
            tokenizer, since the bytes of a token are unknown then.
        perplexity, bits_per_token: mean perplexity and mean bits for each token.
        tokens, scored_nbytes: number of scored tokens and of their bytes; the bytes are
            null if the bundle has no tokenizer.
        window, stride: length of the window and of its steps, in tokens.
        method: name of the method that computed the logits.
        tokens_per_second: scored tokens per second of running and scoring. The time of
            loading, which the first bundle of a process pays for later ones, is left
            out.
        divergence, divergence_error: mean Kullback-Leibler divergence from the bundle
            of `--against`, in nats per token, and its standard error; null without that
            bundle.
        same_tokens: share of tokens for which both bundles find the same token
            likeliest; null without `--against`.
    """

    bundle: str
    recipe: str
    weights_nbytes: int
    bits_per_byte: float | None
    perplexity: float
    bits_per_token: float
    tokens: int
    scored_nbytes: int | None
    window: int
    stride: int
    method: str
    tokens_per_second: float
    divergence: float | None = None
    divergence_error: float | None = None
    same_tokens: float | None = None


def evaluate(
    bundle: str,
    program: "Program",
    raw: bytes,
    window: int | None = None,
    stride: int | None = None,
    progress: "ScoreProgress | None" = None,
    against: "Program | None" = None,
) -> Evaluation:
    """Measure a bundle on a text, and compare it with `against` if that is given.

    Raises:
        BadSetting: the tokenizer of `against` turns the text into other tokens.
        KvcError: as `score_tokens` and `tokenizer_of`.
    """
    from kvc.runtime.scoring import score_tokens
    from kvc.runtime.tokenizers import tokenizer_of

    tokenizer = tokenizer_of(program)
    # A character that was cut off is left out; other bytes stay.
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(raw)
    tokens, start = tokenizer.encode(text, special=False), _start(tokenizer)
    if against is not None and "tokenizer" in program.metadata:
        _check_alike(against, text, tokens, bundle)
    score = score_tokens(program, tokens, window, stride, start, progress, against)
    divergence = score.divergence
    nbytes = None
    if "tokenizer" in program.metadata:
        nbytes = len(os.fsencode(text)) - (0 if start else _nbytes(tokenizer, tokens))
    return Evaluation(
        bundle=bundle,
        recipe=program.provenance.recipe,
        weights_nbytes=_weights_nbytes(program),
        bits_per_byte=score.bits / nbytes if nbytes else None,
        perplexity=score.perplexity,
        bits_per_token=score.bits_per_token,
        tokens=score.tokens,
        scored_nbytes=nbytes,
        window=score.window,
        stride=score.stride,
        method=score.method,
        tokens_per_second=score.tokens / score.seconds,
        divergence=divergence.nats if divergence else None,
        divergence_error=divergence.error if divergence else None,
        same_tokens=divergence.same if divergence else None,
    )


def _check_alike(
    against: "Program", text: str, tokens: Sequence[int], bundle: str
) -> None:
    """Check that the tokenizer of `against`, if any, turns a text into the same tokens.

    Raises:
        BadSetting: the tokens differ.
    """
    from kvc.runtime.tokenizers import tokenizer_of

    if "tokenizer" not in against.metadata:
        return
    if list(tokenizer_of(against).encode(text, special=False)) != list(tokens):
        expected = f"a bundle to which the text is the same tokens as to {bundle}"
        raise BadSetting(name="against", expected=expected, found="other tokens")


def _start(tokenizer: "Tokenizer") -> Sequence[int]:
    """Return the special tokens that a tokenizer puts before a text."""
    plain, special = (list(tokenizer.encode("1", s)) for s in (False, True))
    for at in range(len(special) - len(plain) + 1):
        if special[at : at + len(plain)] == plain:
            return special[:at]
    return []


def _nbytes(tokenizer: "Tokenizer", tokens: Sequence[int]) -> int:
    """Return the bytes of text in the first token, which is not scored."""
    stream = tokenizer.stream()
    first = stream.push(tokens[0]) + stream.finish()
    # A part of a character has no text of its own.
    return 1 if "\ufffd" in first else len(os.fsencode(first))


def _weights_nbytes(program: "Program") -> int:
    """Return the bytes of the data that methods use, without packed copies."""
    from kvc.schema.uses import PACKED

    return sum(
        blob.nbytes
        for blob in program.residency().blobs
        if blob.methods and not blob.names[0].startswith(PACKED)
    )


def table(found: Sequence[Evaluation]) -> list[str]:
    """Return the lines of a table of evaluations; the first line has the titles."""
    titles = ("bundle", "recipe", "weights", "bits per byte", "perplexity", "tokens/s")
    compared = any(one.divergence is not None for one in found)
    rows = [(*titles, *("divergence", "same tokens") * compared)]
    for one in found:
        bits = "-" if one.bits_per_byte is None else f"{one.bits_per_byte:.4f}"
        rows.append(
            (
                escape(one.bundle),
                escape(one.recipe),
                size(one.weights_nbytes),
                bits,
                f"{one.perplexity:.3f}",
                f"{one.tokens_per_second:.0f}",
                *_comparison(one),
            )
        )
    return columns(rows, "<<>>>>>>"[: len(rows[0])])


def _comparison(one: Evaluation) -> tuple[str, ...]:
    if one.divergence is None:
        return ()
    divergence = f"{one.divergence:.5f} ± {one.divergence_error:.5f}"
    return divergence, f"{one.same_tokens:.1%}"
