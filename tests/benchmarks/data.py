"""Figures on data: opening, touching, verifying, loading, freeing, and sharing weights.

`python tests/benchmarks/data.py [--rounds 3] [--peer PYTHON]`. Each measurement is a
process of its own, and what is compared takes turns, round after round. With `--peer`,
the path of a Python that has executorch, ExecuTorch runs the same decoders with the
same weights; without it its rows are left out. safetensors reads the same checkpoints.
"Cold" files have been dropped from the page cache, which is checked. Prints tables in
Markdown: medians, and the least and the greatest of the rounds in brackets.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_bench import (
    SHAPES,
    TINY,
    Bench,
    Figures,
    Samples,
    in_process,
    measure,
    spread,
    table,
)

MODES = ("map", "read", "huge")
HEATS: Mapping[str, tuple[str, ...]] = {"cold": ("--cold",), "warm": ()}
EXPORTS = (
    ("wide", "xnnpack", "both"),
    ("wide", "xnnpack", "decode"),
    ("big", "portable", "decode"),
    ("wide", "portable", "both"),
    ("wide", "portable", "decode"),
    ("small", "xnnpack", "decode"),
    ("small", "portable", "decode"),
)


def make(bench: Bench) -> dict[str, Figures]:
    """Make every file, two at a time; return what each step said, by name."""
    begin = time.perf_counter()
    first = {
        "wide": bench.build("wide", "decode,prefill,both", "--share"),
        "small": bench.build("small", "both"),
        "big": bench.build("big", "both"),
    }
    second = {"deep": bench.build("deep", "decode,both")}
    if bench.peer:
        second |= {"-".join(export): bench.export(*export) for export in EXPORTS}
    said = {}
    with ThreadPoolExecutor(2) as pool:
        for steps in (first, second):
            said |= dict(zip(steps, pool.map(in_process, steps.values()), strict=True))
    sys.stderr.write(f"files made in {time.perf_counter() - begin:.0f} s\n")
    return said


def opening(bench: Bench) -> None:
    """Open the biggest bundle, and its peers, from disk and from the page cache."""
    file, weights = "big-both.kvc", "big.safetensors"
    steps = {
        "first": bench.kvc("open", file, "--first"),
        "kvc": bench.kvc("open", file),
        "deep": bench.kvc("open", "deep-both.kvc"),
        "wide": bench.kvc("open", "wide-both.kvc"),
        "safe_open": bench.kvc("safetensors", weights, "--reader", "safe_open"),
        "load_file": bench.kvc("safetensors", weights, "--reader", "load_file"),
    }
    small, flat = (described(bench, name) for name in ("deep", "wide"))
    rows = [
        ("kvc `load`, the process's first", "first", "open_s", ""),
        ("kvc `load`", "kvc", "open_s", "first_s"),
        (f"kvc `load` of {small}", "deep", "open_s", "first_s"),
        (f"kvc `load` of {flat}", "wide", "open_s", "first_s"),
        ("safetensors `safe_open`", "safe_open", "open_s", ""),
        ("safetensors `load_file`", "load_file", "open_s", ""),
    ]
    if bench.peer:
        steps["et"] = bench.et("open", "big-portable-decode")
        rows += [
            ("ExecuTorch `load_program`", "et", "open_s", ""),
            ("ExecuTorch, with `load_method`", "et", "method_s", "first_s"),
        ]
    found = by_heat(bench, steps)
    lines = []
    for label, case, key, result in rows:
        cold, warm = found[f"{case} cold"], found[f"{case} warm"]
        pulled = cold.mb("pulled_nbytes") if key == "open_s" else ""
        results = [s.ms(result) if result else "" for s in (cold, warm)]
        lines.append(
            (label, cold.ms(key), pulled, results[0], warm.ms(key), results[1])
        )
    header = ("ms", "cold open", "MB read by it", "cold, first result")
    title = f"Opening a file: {described(bench, 'big')} unless said otherwise"
    table(title, (*header, "warm open", "warm, first result"), lines)


def described(bench: Bench, name: str) -> str:
    """Return the size and depth of a shape's bundle."""
    megabytes = bench.nbytes(f"{name}-both.kvc") / 1e6
    return f"{megabytes:.0f} MB, {bench.shapes[name]['layers']} layers"


def by_heat(bench: Bench, steps: Mapping[str, list[str]]) -> dict[str, Samples]:
    """Measure each step with a cold file and with a warm one."""
    cases = {
        f"{name} {heat}": [*command, *flags]
        for heat, flags in HEATS.items()
        for name, command in steps.items()
    }
    return measure(cases, bench.rounds)


def touching(bench: Bench) -> None:
    """Touch all weights of the biggest bundle once."""
    file, weights = "big-both.kvc", "big.safetensors"
    steps = {
        "kvc": bench.kvc("touch", file),
        "map": bench.kvc("pages", file),
        "safe_open": bench.kvc("safetensors", weights, "--reader", "safe_open"),
        "load_file": bench.kvc("safetensors", weights, "--reader", "load_file"),
    }
    found = by_heat(bench, steps)
    rows = [
        ("kvc: `array()` of all, with digests", "kvc", "asked_s"),
        ("kvc: a byte of each page after that", "kvc", "pages_s"),
        ("kvc: both", "kvc", "touched_s"),
        ("a private map, a byte of each page", "map", "touched_s"),
        ("safetensors `safe_open`, `get_tensor`, pages", "safe_open", "touched_s"),
        ("safetensors `load_file`, pages", "load_file", "touched_s"),
    ]
    lines = [
        (label, *(found[f"{case} {heat}"].ms(key) for heat in HEATS))
        for label, case, key in rows
    ]
    title = f"First touch of all of {bench.nbytes(file) / 1e9:.2f} GB"
    table(title, ("ms", *HEATS), lines)
    kvc = found["kvc warm"]
    share = [a / b for a, b in zip(kvc.of("asked_s"), kvc.of("touched_s"), strict=True)]
    sys.stdout.write(f"\nWarm, {spread([100 * s for s in share])}% of it is digests.\n")


def verifying(bench: Bench) -> None:
    """Verify every byte of the biggest bundle."""
    file = "big-both.kvc"
    steps = {
        "kvc, in process": bench.kvc("verify", file),
        "one thread of SHA-256": bench.kvc("hash", file),
        "`kvc verify`, from its start": bench.kvc("command", file),
    }
    found = by_heat(bench, steps)
    gigabytes = bench.nbytes(file) / 1e9
    lines = [
        (
            name,
            *(
                spread([gigabytes / s for s in found[f"{name} {heat}"].of("verify_s")])
                for heat in HEATS
            ),
        )
        for name in steps
    ]
    table(f"Verifying {gigabytes:.2f} GB", ("GB/s", *HEATS), lines)


def running(bench: Bench) -> None:
    """Load in each mode, run decode and then prefill, release; count memory."""
    methods = ("--methods", "decode,prefill")
    steps = {
        f"kvc, {mode}": bench.kvc("run", "wide-both.kvc", "--mode", mode, *methods)
        for mode in MODES
    }
    if bench.peer:
        for backend in ("portable", "xnnpack"):
            name = f"wide-{backend}-both"
            steps[f"ExecuTorch, {backend}"] = bench.et("run", name, *methods)
    found = measure(steps, bench.rounds)
    speed(bench, found)
    memory(found)
    second_in_memory(found)


def speed(bench: Bench, found: Mapping[str, Samples]) -> None:
    """Print how fast each loads, answers and decodes."""
    lines = [
        (
            name,
            samples.ms("load_s"),
            samples.ms("first_s"),
            spread([1 / s for s in samples.of("decode_s")]),
            samples.ms("again_s") if name.startswith("kvc") else "",
        )
        for name, samples in found.items()
    ]
    header = ("", "load, ms", "first result, ms", "decode, tokens/s")
    title = f"Loading {bench.nbytes('wide-both.kvc') / 1e6:.0f} MB, warm"
    table(title, (*header, "a step after `release`, ms"), lines)


def memory(found: Mapping[str, Samples]) -> None:
    """Print what is resident beyond what was before the load."""
    moments = {
        "load": "loaded",
        "first decode": "decode",
        "decoding": "decoded",
        "`release`": "released",
        "`close`": "closed",
    }
    lines = [
        (name, *(samples.memory(when) for when in moments.values()))
        for name, samples in found.items()
    ]
    title = "Resident MB beyond those before the load, anonymous + file, after"
    table(title, ("", *moments), lines)


def second_in_memory(found: Mapping[str, Samples]) -> None:
    """Print what the second method adds to what is resident."""
    lines = [
        (name, samples.memory("decode"), samples.memory("prefill"), samples.extra())
        for name, samples in found.items()
    ]
    header = ("MB, anonymous + file", "decode has run", "prefill too", "added")
    table("A second method in memory", header, lines)


def freeing(bench: Bench) -> None:
    """Touch all weights and free each handle, in each mode."""
    steps = {
        mode: bench.kvc("touch", "wide-both.kvc", "--mode", mode) for mode in MODES
    }
    found = measure(steps, bench.rounds)
    lines = [
        (
            mode,
            s.ms("touched_s"),
            s.memory("touched"),
            s.ms("free_s"),
            s.memory("freed"),
        )
        for mode, s in found.items()
    ]
    header = ("mode", "touch all, ms", "resident MB", "free all, ms", "resident MB")
    megabytes = bench.nbytes("wide-both.kvc") / 1e6
    title = f"Touching and freeing {megabytes:.0f} MB through `program.data`"
    table(title, header, lines)


def second_in_file(bench: Bench, said: Mapping[str, Figures]) -> None:
    """Print what prefill adds to a file that has decode."""
    lines = []
    for name in ("wide", "deep"):
        one, two = (bench.dump(f"{name}-{m}.kvc") for m in ("decode", "both"))
        added = sum(two.values()) - sum(one.values())
        code = sum(nbytes for part, nbytes in two.items() if part.startswith("prefill"))
        stored = sum(two[part] - one[part] for part in ("blobs", "padding"))
        label = f"kvc, {bench.shapes[name]['layers']} layers"
        figures = (added, code, added - code, stored)
        lines.append((label, *(f"{nbytes:,}" for nbytes in figures)))
    for backend in ("portable", "xnnpack") if bench.peer else ():
        one, two = (
            said[f"wide-{backend}-{m}"]["file_nbytes"] for m in ("decode", "both")
        )
        label = f"ExecuTorch, {backend}, {bench.shapes['wide']['layers']} layers"
        lines.append((label, f"{two - one:,.0f}", "", "", ""))
    header = ("bytes", "added", "instructions", "beside them", "of it in blobs")
    table("A second method in the file", header, lines)


def sharing(bench: Bench, said: Mapping[str, Figures]) -> None:
    """Print what files take that share weights, and that do not."""
    wide = said["wide"]
    both, decode = wide["both_nbytes"], wide["decode_nbytes"]
    over, apart = wide["both_added"], "a bundle each"
    cases = [
        ("prefill, decode in a bundle", both, apart, decode + wide["prefill_nbytes"]),
        ("tied embedding and head", both, "each stored", wide["untied_named"]),
        ("equal ones", wide["untied_nbytes"], "each stored", wide["untied_named"]),
        ("both, decode alone over its data file", over + wide["decode_added"],
         apart, both + decode),
        ("both, another recipe over its data file", over + wide["second_added"],
         apart, both + wide["second_nbytes"]),
    ]  # fmt: skip
    for backend in ("portable", "xnnpack") if bench.peer else ():
        pte = said[f"wide-{backend}-both"]
        label = f"ExecuTorch, {backend}: prefill and decode in a `.pte`"
        cases.append((label, pte["file_nbytes"], "a `.pt2` each", pte["pt2_nbytes"]))
    lines = [
        (label, f"{shared / 1e6:,.1f}", other, f"{apart / 1e6:,.1f}",
         f"{100 * (1 - shared / apart):.1f}%")
        for label, shared, other, apart in cases
    ]  # fmt: skip
    weights = wide["weights_nbytes"] / 1e6
    header = ("MB", "shared", "against", "", "saved")
    table(f"Weights stored once ({weights:,.1f} MB of them)", header, lines)


def main() -> None:
    """Make the files, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="", help="a Python with executorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to make a folder for 5 GB of files")
    parser.add_argument("--exports", help="keep the peer's files there, or take them")
    parser.add_argument("--tiny", action="store_true", help="to try the script")
    options = parser.parse_args()
    if not options.peer:
        sys.stdout.write("No --peer: ExecuTorch is left out.\n")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        shapes = TINY if options.tiny else SHAPES
        exports = Path(options.exports or folder)
        exports.mkdir(parents=True, exist_ok=True)
        bench = Bench(Path(folder), exports, options.peer, shapes, options.rounds)
        said = make(bench)
        begin = time.perf_counter()
        opening(bench)
        touching(bench)
        verifying(bench)
        running(bench)
        freeing(bench)
        second_in_file(bench, said)
        sharing(bench, said)
        sys.stderr.write(f"measured in {time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main()
