"""The picture of `streaming.py`: peak memory of compiling against the model's size."""

import sys
from collections.abc import Sequence
from pathlib import Path

COLOURS = {"fp32": "#1f5fa8", "xnnpack_q8": "#d9822b", "bf16": "#3d8b55"}
INK, FAINT = "#333333", "#999999"

Row = dict[str, float | str]


def draw(rows: Sequence[Row], eager: Sequence[Row], path: Path) -> None:
    """Draw what was measured; the same figures give the same file."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install -e '.[bench]'")
    mpl.rcParams["svg.hashsalt"] = "kvc"
    mpl.rcParams["font.size"] = 10
    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    axes = figure.add_subplot()
    _draw_limits(axes, rows)
    if eager:
        points = _points(eager)
        axes.plot(*points, "s-", color=FAINT, ms=5, label="loaded eagerly, measured")
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        own = [row for row in rows if row["recipe"] == recipe]
        colour = COLOURS.get(str(recipe), INK)
        axes.plot(*_points(own), "o-", color=colour, lw=2, label=f"kvc, {recipe}")
    axes.set(xlabel="checkpoint, GB", ylabel="peak RssAnon + RssShmem of compiling, GB")
    axes.set_title(
        "Compiling needs memory for a few blocks, not for the model", loc="left"
    )
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_limits(axes, rows: Sequence[Row]) -> None:
    largest = max(float(row["checkpoint"]) for row in rows) / 1e9
    bound = max(float(row["bound"]) for row in rows) / 1e9
    axes.plot([0, largest], [0, largest], ":", color=INK, label="size of the model")
    axes.plot(
        [0, largest],
        [bound, bound],
        "--",
        color="#b03a48",
        label="bound: 1 GB + twice the largest tensor",
    )
    axes.set_xlim(0, largest * 1.03)
    axes.set_ylim(0, largest * 1.03)


def _points(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    ordered = sorted(rows, key=lambda row: float(row["checkpoint"]))
    return (
        [float(row["checkpoint"]) / 1e9 for row in ordered],
        [float(row["peak"]) / 1e9 for row in ordered],
    )
