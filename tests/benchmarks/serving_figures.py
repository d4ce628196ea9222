"""Figures of many answers: speeds, times to the first token, gaps, what is wrong.

In: answers with the times of their pieces, what the processes took. Out: figures as
plain numbers, ratios of two servers, tables.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

from serving_client import Answered


@dataclass(frozen=True, slots=True)
class Took:
    """What a load took of processes.

    Attributes:
        server_s: processor seconds of the server and its children.
        client_s: processor seconds of the load generator.
        others_s: processor seconds of all other processes of the machine.
        peak_nbytes: the most resident memory of the server.
    """

    server_s: float = math.nan
    client_s: float = math.nan
    others_s: float = math.nan
    peak_nbytes: float = math.nan


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a load.

    Attributes:
        clients: how many clients asked at once.
        requests: how many requests were sent.
        failures: how many of them failed.
        short: how many answers have fewer tokens than asked for.
        prompt: the median number of tokens of a prompt.
        reused: the share of the tokens of prompts that the server had read before.
        tokens: the number of tokens of all answers.
        seconds: from the first request to the last piece.
        tokens_per_s: tokens of all answers by these seconds.
        one_per_s: the median of the speeds of single answers after their first piece.
        first_s: the median time to the first piece of text.
        first_95_s: the time that 95% of the first pieces kept.
        gap_s: the median time between two pieces of an answer.
        worst_gap_s: the longest of these times.
        server_s: processor seconds of the server.
        client_s: processor seconds of the load generator.
        others_s: processor seconds of all other processes of the machine.
        peak_nbytes: the most resident memory of the server.
        why: the first failures.
    """

    clients: int
    requests: int
    failures: int
    short: int
    prompt: float
    reused: float
    tokens: int
    seconds: float
    tokens_per_s: float
    one_per_s: float
    first_s: float
    first_95_s: float
    gap_s: float
    worst_gap_s: float
    server_s: float
    client_s: float
    others_s: float
    peak_nbytes: float
    why: tuple[str, ...] = ()


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that a share of all values does not exceed; or NaN."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def middle(values: Iterable[float]) -> float:
    """Return the median, NaN of nothing."""
    found = list(values)
    return median(found) if found else math.nan


def decode_rate(answered: Answered) -> float:
    """Return tokens a second after the first piece; NaN if there is one piece alone.

    The first piece counts as one token. What comes in larger pieces later is counted
    as the server counts it.
    """
    took = answered.pieces[-1] - answered.pieces[0]
    return (answered.tokens - 1) / took if took > 0 else math.nan


def figures_of(
    answers: Sequence[Answered], clients: int, wanted: int, took: Took
) -> Figures:
    """Return the figures of the answers to a load.

    Args:
        answers: all answers, failures too.
        clients: how many clients asked at once.
        wanted: how many tokens each answer should have.
        took: what the load took of processes.
    """
    good = [one for one in answers if not one.failure]
    gaps = [b - a for one in good for a, b in pairwise(one.pieces)]
    firsts = [one.pieces[0] - one.begun for one in good]
    tokens = sum(one.tokens for one in good)
    ends = [one.pieces[-1] for one in good]
    seconds = max(ends) - min(one.begun for one in answers) if ends else math.nan
    prompts = sum(one.prompt for one in good)
    rates = [rate for one in good if not math.isnan(rate := decode_rate(one))]
    return Figures(
        clients=clients,
        requests=len(answers),
        failures=len(answers) - len(good),
        short=sum(one.tokens < wanted for one in good),
        prompt=middle(one.prompt for one in good),
        reused=sum(one.reused for one in good) / prompts if prompts else math.nan,
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        one_per_s=middle(rates),
        first_s=middle(firsts),
        first_95_s=percentile(firsts, 0.95),
        gap_s=middle(gaps),
        worst_gap_s=max(gaps, default=math.nan),
        why=tuple(dict.fromkeys(one.failure for one in answers if one.failure))[:3],
        **asdict(took),
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """A server's figure as a multiple of another's, in each round.

    Attributes:
        middle: the median over the rounds.
        least: the least of them.
        most: the greatest of them.
    """

    middle: float
    least: float
    most: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of figures of the same rounds."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(middle(each), min(each), max(each))


def comparable_rounds(served: Sequence[float], alone: Sequence[float]) -> list[int]:
    """Return the rounds in which one client got 0.8 to 1.25 of the bare model's speed.

    With less the server was badly set up. With more the machine was busy with others
    while the bare model ran, and may have been so at any time of the round.
    """
    shares = enumerate(a / b for a, b in zip(served, alone, strict=True))
    return [number for number, share in shares if 0.8 <= share <= 1.25]


COLUMNS: Mapping[str, tuple[str, float, int]] = {  # field -> title, factor, decimals
    "tokens_per_s": ("tokens/s", 1, 1),
    "one_per_s": ("one's", 1, 1),
    "first_s": ("first ms", 1e3, 0),
    "first_95_s": ("95% ms", 1e3, 0),
    "gap_s": ("gap ms", 1e3, 1),
    "worst_gap_s": ("worst ms", 1e3, 0),
    "server_s": ("CPU s", 1, 2),
    "client_s": ("client s", 1, 2),
    "others_s": ("others s", 1, 2),
    "peak_nbytes": ("peak MB", 1e-6, 0),
    "failures": ("failed", 1, 0),
    "short": ("short", 1, 0),
}


def row_of(rounds: Sequence[Figures]) -> list[str]:
    """Return the cells of a server: medians of rounds, sums of what went wrong."""
    cells = []
    for name, (_, factor, decimals) in COLUMNS.items():
        values = [factor * getattr(one, name) for one in rounds]
        is_count = name in ("failures", "short")
        value = sum(values) if is_count else middle(values)
        cells.append("-" if math.isnan(value) else f"{value:,.{decimals}f}")
    return cells


def table(rows: Mapping[str, Sequence[str]], titles: Sequence[str]) -> str:
    """Return rows with names as a table with aligned columns."""
    cells = [["", *titles], *([name, *row] for name, row in rows.items())]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *others in cells:
        told = [other.rjust(w) for other, w in zip(others, wide[1:], strict=True)]
        lines.append("  ".join([name.ljust(wide[0]), *told]).rstrip())
    return "\n".join(lines)
