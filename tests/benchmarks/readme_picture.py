"""The picture of README.md: `python tests/benchmarks/readme_picture.py`.

In: `results/*.json`, as `xnnpack.py run --json` writes them. Out: bars of speed and
memory of kvc and its peers, a row for each machine; the same figures give the same
bytes. Needs matplotlib: `pip install -e '.[bench]'`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_bench import number

HERE = Path(__file__).parent
MACHINES = {"AVX2": "model_a_avx2", "AVX512-VNNI": "model_a_vnni"}
STACKS = {
    "kvc cpu_q8": "kvc",
    "llama.cpp Q8_0": "llama.cpp",
    "ONNX Runtime, dynamic int8": "ONNX Runtime",
    "ExecuTorch 8da8w": "ExecuTorch",
}
PANELS = {
    "decode at 1,024": "decode at 1,024: tokens/s",
    "prefill 512": "prompt of 512: tokens/s",
    "peak_mb": "peak memory: MB, less is better",
}
OWN, OTHER, INK = "#1f5fa8", "#b8bcc2", "#333333"


def read(name: str) -> dict[str, object]:
    """Return results by their name."""
    results: dict[str, object] = json.loads(
        (HERE / "results" / f"{name}.json").read_text()
    )
    return results


def figures_of(results: Mapping[str, object], figure: str) -> list[float | None]:
    """Return a figure of each stack, None where it was not measured.

    Args:
        results: of one machine.
        figure: a key of `PANELS`.
    """
    stacks = {stack["name"]: stack for stack in results["stacks"]}  # type: ignore[attr-defined]
    found: list[float | None] = []
    for name in STACKS:
        stack = stacks.get(name)
        if stack is None:
            found.append(None)
        elif figure in stack:
            found.append(stack[figure])
        else:
            found.append(stack["tokens_per_second"][figure][0])
    return found


def draw(machines: Mapping[str, Mapping[str, object]], path: Path) -> None:
    """Draw results by the name of their machine."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("matplotlib is missing: pip install -e '.[bench]'")
    mpl.rcParams["svg.hashsalt"] = "kvc"
    mpl.rcParams["font.size"] = 9
    drawing = Figure(figsize=(9, 2 * len(machines) + 0.3), layout="constrained")
    grid = drawing.subplots(len(machines), len(PANELS), squeeze=False)
    for row, (machine, results) in zip(grid, machines.items(), strict=True):
        for axes, (figure, title) in zip(row, PANELS.items(), strict=True):
            _bars(axes, figures_of(results, figure))
            axes.set_title(title, loc="left", fontsize=9, color=INK)
        for axes in row[1:]:
            axes.set_yticklabels([])
        row[0].set_ylabel(f"{machine}\n{results['date']}", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _bars(axes, figures: Sequence[float | None]) -> None:
    colours = [OWN, *[OTHER] * (len(STACKS) - 1)]
    axes.barh(range(len(STACKS)), [value or 0 for value in figures], color=colours)
    for place, value in enumerate(figures):
        text = "not measured" if value is None else number(value)
        axes.text(value or 0, place, f" {text}", va="center", color=INK)
    axes.set_yticks(range(len(STACKS)), list(STACKS.values()))
    axes.set_xlim(0, 1.25 * max(value or 0 for value in figures))
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def main() -> None:
    """Draw the picture."""
    machines = {machine: read(name) for machine, name in MACHINES.items()}
    draw(machines, HERE / "figures" / "readme.svg")


if __name__ == "__main__":
    main()
