"""Tables of what `serving.py` measured, and the ratios of two servers.

In: what each round of each server told. Out: text.
"""

from collections.abc import Mapping, Sequence

from serving_figures import COLUMNS, Figures, ratio, row_of, table
from serving_loads import Told
from serving_one import standing_rounds

KVC, LLAMA = "kvc", "llama-server"
COMPARED = (
    "tokens_per_s", "one_per_s", "first_s", "first_95_s", "gap_s", "worst_gap_s",
    "server_s", "peak_nbytes",
)  # fmt: skip


def load_report(found: Mapping[str, Sequence[Told]]) -> str:
    """Return tables of loads: one for each number of clients, and the ratios."""
    parts = []
    titles = [title for title, _, _ in COLUMNS.values()]
    first = next(iter(found.values()))[0]
    for count in first["loads"]:
        rounds = {name: of_count(told, count) for name, told in found.items()}
        one = next(iter(rounds.values()))[0]
        parts.append(f"{count} clients, prompts of {one.prompt:.0f} tokens:")
        rows = {name: row_of(figures) for name, figures in rounds.items()}
        parts.append(table(rows, titles))
        parts += ratios(rounds, standing_rounds(found))
        why = {reason for each in rounds.values() for fig in each for reason in fig.why}
        parts += [f"failed: {reason}" for reason in sorted(why)]
        parts.append("")
    if LLAMA in found and "alone_per_s" not in found[LLAMA][0]:
        parts.append("Unchecked: measure with --one whether the comparison stands.")
    return "\n".join(parts)


def of_count(told: Sequence[Told], count: str) -> list[Figures]:
    """Return the figures of all rounds for a number of clients."""
    return [one["loads"][count] for one in told]


def ratios(
    rounds: Mapping[str, Sequence[Figures]], standing: Sequence[int]
) -> list[str]:
    """Return a line of kvc's figures as multiples of llama-server's.

    Args:
        rounds: the figures of each server, by round.
        standing: the rounds that can be compared.
    """
    if set(rounds) != {KVC, LLAMA}:
        return []
    if not standing:
        return ["kvc / llama-server: no round can be compared"]
    told = []
    for name in COMPARED:
        title = COLUMNS[name][0]
        ours, theirs = (
            [getattr(rounds[n][number], name) for number in standing]
            for n in (KVC, LLAMA)
        )
        found = ratio(ours, theirs)
        each = f"{found.middle:.2f} ({found.least:.2f} to {found.most:.2f})"
        told.append(f"{title} {each}")
    return ["kvc / llama-server: " + ", ".join(told)]


def turn_report(found: Mapping[str, Sequence[Told]]) -> str:
    """Return a table of the times to the first tokens of two turns."""
    rows = {}
    for name, told in found.items():
        for number, one in enumerate(told, 1):
            times = [one[f"first_{turn}_s"] * 1e3 for turn in (1, 2)]
            counts = [one[f"prompt_{turn}"] for turn in (1, 2)]
            cells = [*(f"{time:,.0f}" for time in times), *map(str, counts)]
            rows[f"{name}, round {number}"] = [*cells, str(one["reused_2"])]
    titles = ["first turn ms", "second ms", "tokens", "tokens", "reused"]
    return table(rows, titles)
