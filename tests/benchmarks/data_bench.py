"""How `data.py` measures: commands, rounds, samples, tables in Markdown."""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
Shape = dict[str, int]
Figures = dict[str, float]


def shape(
    layers: int, dim: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> Shape:
    """Return the sizes of a decoder with room for 512 tokens."""
    sizes = {"layers": layers, "dim": dim, "heads": heads, "kv_heads": kv_heads}
    return {**sizes, "ffn": ffn, "vocab": vocab, "capacity": 512}


# `big` is 1.02 GB in the depth of a model of a billion; `wide` 428 MB in few layers,
# since the peer takes half a minute a layer to export; `deep` counts instructions.
SHAPES = {
    "small": shape(1, 128, 2, 1, 256, 256),
    "wide": shape(2, 2048, 32, 8, 5632, 8192),
    "deep": shape(16, 128, 2, 1, 256, 256),
    "big": shape(16, 1152, 18, 6, 3072, 24576),
}
TINY = {
    **SHAPES,
    "wide": shape(2, 256, 4, 2, 512, 1024),
    "deep": shape(4, 128, 2, 1, 256, 256),
    "big": shape(4, 256, 4, 2, 512, 4096),
}


def in_process(command: Sequence[str]) -> Figures:
    """Run a command that prints one JSON line; return what it says.

    Raises:
        SystemExit: it failed; with what it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


@dataclass(frozen=True, slots=True)
class Samples:
    """The figures of one case, round by round."""

    rounds: tuple[Figures, ...]

    def of(self, *keys: str) -> list[float]:
        """Return the sum of some figures in each round."""
        return [sum(figures[key] for key in keys) for figures in self.rounds]

    def ms(self, *keys: str) -> str:
        """Return milliseconds, as a table shows them."""
        return spread([1e3 * value for value in self.of(*keys)])

    def mb(self, *keys: str) -> str:
        """Return megabytes, the median alone: memory hardly varies."""
        if any(key not in self.rounds[0] for key in keys):
            return ""
        return f"{statistics.median(self.of(*keys)) / 1e6:,.1f}"

    def memory(self, when: str) -> str:
        """Return the anonymous and the file-backed memory at a moment."""
        own = self.mb(f"{when}_anon", f"{when}_shmem")
        return f"{own} + {self.mb(f'{when}_file')}" if own else ""

    def extra(self) -> str:
        """Return what is resident after prefill beyond that after decode."""
        grown = (
            statistics.median(
                sum(r[f"prefill_{kind}"] - r[f"decode_{kind}"] for kind in kinds)
                for r in self.rounds
            )
            for kinds in (("anon", "shmem"), ("file",))
        )
        return " + ".join(f"{nbytes / 1e6:,.2f}" for nbytes in grown)


def spread(values: list[float]) -> str:
    """Return the median, and the least and the greatest of the rounds."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{number(middle)} ({number(least)} to {number(most)})"


def number(value: float) -> str:
    """Return three digits or all before the point."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def measure(cases: dict[str, list[str]], rounds: int) -> dict[str, Samples]:
    """Run all cases in turn, round after round, each time in new processes."""
    found: dict[str, list[Figures]] = {name: [] for name in cases}
    for turn in range(rounds):
        for name, command in cases.items():
            sys.stderr.write(f"\r\033[Kround {turn + 1}: {name}")
            found[name].append(in_process(command))
    sys.stderr.write("\r\033[K")
    return {name: Samples(tuple(figures)) for name, figures in found.items()}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    lines = [f"\n{title}\n", f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where files and programs are, and how often to measure.

    Attributes:
        folder: of all files that are made; removed at the end.
        exports: of what the peer makes; may be kept.
        peer: a Python with executorch, or "".
        shapes: sizes of the models, by name.
        rounds: how often each case runs.
    """

    folder: Path
    exports: Path
    peer: str
    shapes: dict[str, Shape]
    rounds: int

    def kvc(self, stage: str, file: str, *more: str) -> list[str]:
        """Return the command of a step of `data_kvc.py`."""
        files = (
            "--path",
            self.folder / file,
            "--small",
            self.folder / "small-both.kvc",
        )
        return step(sys.executable, "data_kvc", stage, *files, *more)

    def et(self, stage: str, name: str, *more: str) -> list[str]:
        """Return the command of a step of `data_peers.py` on a program."""
        small = "small-xnnpack-decode" if "xnnpack" in name else "small-portable-decode"
        files = ("--path", self.pte(name), "--small", self.pte(small))
        return step(self.peer, "data_peers", stage, *files, *more)

    def pte(self, name: str) -> Path:
        """Return where a program of the peer is; its sizes are in its name."""
        sizes = "-".join(map(str, self.shapes[name.split("-")[0]].values()))
        return self.exports / f"{name}-{sizes}.pte"

    def nbytes(self, file: str) -> int:
        """Return the size of a file."""
        return (self.folder / file).stat().st_size

    def dump(self, file: str) -> dict[str, int]:
        """Return the bytes of a bundle by part, as `kvc dump --size` tells them.

        Raises:
            SystemExit: they do not add up to the file.
        """
        kvc = str(Path(sys.executable).with_name("kvc"))
        command = [kvc, "dump", "--size", "--json"]
        done = subprocess.run(
            [*command, str(self.folder / file)], capture_output=True, check=True
        )
        size = json.loads(done.stdout)["size"]
        parts: dict[str, int] = {}
        for part in size["parts"]:
            own = part["what"].endswith((": code", ": delegate payloads"))
            kind = part["what"] if own else part["category"]
            parts[kind] = parts.get(kind, 0) + part["nbytes"]
        if sum(parts.values()) != self.nbytes(file):
            raise SystemExit(f"kvc dump --size of {file} does not add up: {parts}")
        return parts

    def build(self, name: str, methods: str, *more: str) -> list[str]:
        """Return the command that makes `NAME.safetensors` and `NAME-METHODS.kvc`."""
        sizes = ("--name", name, "--shape", json.dumps(self.shapes[name]))
        files = ("--folder", self.folder, "--methods", methods)
        return step(sys.executable, "data_build", *files, *sizes, *more)

    def export(self, name: str, backend: str, methods: str) -> list[str]:
        """Return the command that makes `NAME-BACKEND-METHODS`, unless it is there."""
        sizes = ("--shape", json.dumps(self.shapes[name]), "--backend", backend)
        names = "prefill,decode" if methods == "both" else methods
        checkpoint = str(self.folder / f"{name}.safetensors")
        more = ("--checkpoint", checkpoint, "--methods", names)
        return self.et("export", f"{name}-{backend}-{methods}", *sizes, *more)


def step(python: str, script: str, *arguments: str | Path) -> list[str]:
    """Return the command that runs a script of this folder."""
    return [python, str(HERE / f"{script}.py"), *map(str, arguments)]
