"""How near the stacks of `xnnpack.py` come to what the machine can do.

In: the figures of rounds, in each of which `probe.cc` ran as well. Out: a table of
limits, of the best peer and of kvc, and a chart of it.

A token that is decoded reads all weights and the cache once, so memory limits it; a
prompt multiplies, and products limit it. The limit of a round is what its probe gives
by the formula of `least_seconds`. Ratios are taken in each round; the median is shown.
"""

import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_bench import HERE, Figures, Samples, number, table
from xnnpack_measure import DEPTHS, PROMPTS, SHAPES

PROBE = "the machine"
_FIGURES = {f"prefill_{n}_s": n for n in PROMPTS} | {f"decode_{n}_s": 1 for n in DEPTHS}
_COLOURS = ("#1f5fa8", "#d9822b", "#3d8b55", "#8a4f9e")


@dataclass(frozen=True, slots=True)
class Point:
    """One figure of a stack of kvc: medians of rounds.

    Attributes:
        stack: its name.
        figure: which, in words.
        limit: tokens per second that the machine could make.
        speed: those that the stack makes.
        peer: the name of the best peer, or "".
        peer_speed: tokens per second of that, or 0.
        of_peer: how many times as fast as that the stack is.
        of_limit: the share of the limit.
    """

    stack: str
    figure: str
    limit: float
    speed: float
    peer: str
    peer_speed: float
    of_peer: float
    of_limit: float


def probe_command(folder: Path, threads: int) -> list[str]:
    """Compile the probe, and return the command that runs it."""
    program = folder / "probe"
    flags = ("-O3", "-std=c++17", "-pthread", "-Wno-psabi")
    subprocess.run(["c++", *flags, HERE / "probe.cc", "-o", program], check=True)
    command = [str(program), str(threads)]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL
    )  # it says if it cannot
    return command


def least_seconds(
    key: str, model: str, nbytes: int, probe: Figures, integers: bool
) -> float:
    """Return the least seconds that a figure can be on a machine.

    Args:
        key: of the figure.
        model: a key of `SHAPES`.
        nbytes: of the weights.
        probe: what the machine can do.
        integers: whether linear layers multiply int8, rather than float32.
    """
    shape, (what, length, _) = SHAPES[model], key.split("_")
    positions, dim, layers = int(length), shape["dim"], shape["layers"]
    kv = dim // shape["heads"] * shape["kv_heads"]
    if what == "decode":
        cache = 2 * layers * kv * positions * 4
        return (nbytes + cache) / probe["read_bytes"]
    linears = layers * (2 * dim * dim + 2 * dim * kv + 3 * dim * shape["ffn"])
    products = positions * linears + dim * shape["vocab"]  # of the last token's logits
    seen = positions * (positions + 1) // 2  # pairs of a query and a key
    attention = 2 * layers * dim * seen / probe["float_products"]
    peak = probe["int8_products" if integers else "float_products"]
    return products / peak + attention


def find_points(
    found: Mapping[str, Samples], nbytes: Mapping[str, int], model: str
) -> list[Point]:
    """Return what each stack of kvc reaches, beside peers of as many bits a weight."""
    others = {
        name: samples
        for name, samples in found.items()
        if name != PROBE and not name.startswith("kvc")
    }
    points = []
    for name, samples in found.items():
        for key, count in _FIGURES.items() if name.startswith("kvc") else ():
            own = samples.of(key)
            least = [
                least_seconds(key, model, nbytes[name], probe, "_q" in name)
                for probe in found[PROBE].rounds
            ]
            times = {
                peer: each.of(key)
                for peer, each in others.items()
                if _bits(peer) == _bits(name)
            }
            best = min(
                times, key=lambda each: statistics.median(times[each]), default=""
            )
            theirs = times.get(best, [0.0] * len(own))
            points.append(
                Point(
                    name,
                    _words(key),
                    count / statistics.median(least),
                    count / statistics.median(own),
                    best,
                    count / statistics.median(theirs) if best else 0.0,
                    _ratio(theirs, own),
                    _ratio(least, own),
                )
            )
    return points


def _bits(stack: str) -> str:
    """Return how many bits a stack's weights have, by its name."""
    found = re.search(r"(?:[qQ]|int|fp|b?[fF])(4|8|16|32)", stack)
    return found[1] if found else "8"


def _words(key: str) -> str:
    what, length, _ = key.split("_")
    return f"{what} {'at ' if what == 'decode' else ''}{int(length):,}"


def _ratio(theirs: Sequence[float], own: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, own, strict=True))


def show_limits(points: Sequence[Point]) -> None:
    """Print a table."""
    rows = [
        [
            point.stack,
            point.figure,
            number(point.limit),
            f"{point.peer}: {number(point.peer_speed)}" if point.peer else "",
            number(point.speed),
            f"{point.of_peer:.2f}" if point.peer else "",
            f"{point.of_limit:.2f}",
        ]
        for point in points
    ]
    header = (
        "",
        "tokens/s",
        "limit",
        "best peer",
        "kvc",
        "of the peer",
        "of the limit",
    )
    table("Beside the limits of the machine", header, rows)


def draw_limits(points: Sequence[Point], path: Path) -> None:
    """Draw the share of its limit that each stack reaches, and the best peer's."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install -e '.[bench]'")
    mpl.rcParams["svg.hashsalt"] = "kvc"
    stacks = list(dict.fromkeys(point.stack for point in points))
    figures = list(dict.fromkeys(point.figure for point in points))
    drawing = Figure(figsize=(7.2, 0.9 + 0.36 * len(points)), layout="constrained")
    axes = drawing.add_subplot()
    pitch = len(stacks) + 1
    for point in points:
        column = stacks.index(point.stack)
        place = figures.index(point.figure) * pitch + column
        colour = _COLOURS[column % len(_COLOURS)]
        axes.barh(place, point.of_limit, color=colour, height=0.8)
        number_of = {"ha": "left", "va": "center", "color": "white"}
        axes.text(0.01, place, f"{point.speed:,.0f}", **number_of)
        if point.peer:
            at = point.peer_speed / point.limit
            axes.plot([at, at], [place - 0.4, place + 0.4], color="#333333", lw=2)
    ticks = {
        figures.index(point.figure) * pitch + stacks.index(point.stack): point.stack
        for point in points
    }
    axes.set_yticks(list(ticks), [name.removeprefix("kvc ") for name in ticks.values()])
    for row, figure in enumerate(figures):
        axes.text(0.005, row * pitch - 0.65, figure, weight="bold")
    axes.set(xlim=(0, 1.1), xlabel="share of the machine's limit; number: tokens/s")
    axes.set_title(
        "What the machine could do, kvc, and the best peer (line)", loc="left"
    )
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e6e6")
    axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
