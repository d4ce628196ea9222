"""kvc, llama.cpp, ONNX Runtime and ExecuTorch on one model, in turn.

    python tests/benchmarks/xnnpack.py build FOLDER [options]
    python tests/benchmarks/xnnpack.py run FOLDER [options]
    python tests/benchmarks/xnnpack.py sharing FOLDER [options]

`build` makes what is missing in a folder: bundles of kvc, and files of the peers whose
Python is given. `run` measures each stack in a process of its own, in turn, round after
round, and names those that it has to skip. `sharing` measures kvc alone: two methods
that share their weights, against a bundle for each. Files are in the page cache. Prints
tables in Markdown: medians of the rounds, the least and the greatest in brackets. With
`--limits`, the machine's bandwidth and its products a second are measured in each
round, and a table and a chart (`--plot`) say which share of them each stack reaches.
`--json` writes all of it, of which `readme_picture.py` draws the picture of README.md.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_bench import Samples, spread, table
from xnnpack_limits import (
    PROBE,
    draw_limits,
    find_points,
    probe_command,
    show_limits,
)
from xnnpack_results import about, results_of, versions_of, write_results
from xnnpack_rounds import describe_machine, measure
from xnnpack_sharing import measure_sharing, sharing_cases
from xnnpack_stacks import Case, add_stack_options, cases, packages_of


def build(wanted: Sequence[Case]) -> None:
    """Make the files that are missing."""
    made: set[Path] = set()
    for case in wanted:
        if case.path in made or case.path.exists():
            continue
        if not case.make:
            say(f"skipped: {case.name}: nothing is given to make {case.path.name} with")
            continue
        say(f"making {case.path.name}")
        case.path.parent.mkdir(parents=True, exist_ok=True)
        made.add(case.path)
        log = case.path.with_suffix(".log")
        with log.open("wb") as file:
            done = subprocess.run(case.make, stdout=file, stderr=file, check=False)
        if done.returncode:
            case.path.unlink(missing_ok=True)
            say(f"failed: see {log}")
        else:
            log.unlink()


def compare(wanted: Sequence[Case], options: argparse.Namespace) -> None:
    """Measure all stacks that are there, and print what came of it."""
    there = [case for case in wanted if not case.why_not()]
    for case in wanted:
        if case not in there:
            say(f"skipped: {case.name}: {case.why_not()}")
    how = ["--repeats", options.repeats, "--steps", options.steps]
    how += ["--threads", options.threads]
    commands = {case.name: [*case.run, *map(str, how)] for case in there}
    if options.limits:
        commands[PROBE] = probe_command(options.folder, options.threads)
    paths = {case.name: [case.path] for case in there}
    found = measure(commands, paths, options.rounds, options.threads)
    say(describe_machine())
    show_speed(found)
    nbytes = {case.name: case.nbytes() for case in there}
    show_memory(found, nbytes)
    points = find_points(found, nbytes, options.model) if options.limits else []
    if options.json:
        write_results(
            about(options.model, describe_machine(), options.threads)
            | {"versions": versions_of(options.llama, packages_of(options))}
            | results_of(found, nbytes, points),
            options.json,
        )
    if options.limits:
        show_limits(points)
        if options.plot:
            draw_limits(points, options.plot)


def show_speed(found: Mapping[str, Samples]) -> None:
    """Print tokens per second."""
    keys = {"prefill_128_s": 128, "prefill_512_s": 512}
    keys |= {"decode_128_s": 1, "decode_1024_s": 1}
    rows = [
        [name, *(spread([n / v for v in samples.of(key)]) for key, n in keys.items())]
        for name, samples in found.items()
        if name != PROBE
    ]
    header = ("tokens/s", "prefill 128", "prefill 512", "decode at 128", "at 1,024")
    table("Speed", header, rows)


def show_memory(found: Mapping[str, Samples], nbytes: Mapping[str, int]) -> None:
    """Print what loading takes, and memory."""
    rows = [
        [
            name,
            samples.ms("load_s"),
            spread(samples.of("start_s")),
            *(samples.memory(when) for when in ("imported", "loaded", "first", "ran")),
            f"{statistics.median(samples.of('peak_nbytes')) / 1e6:,.0f}",
            f"{nbytes[name] / 1e6:,.1f}",
        ]
        for name, samples in found.items()
        if "load_s" in samples.rounds[0]
    ]
    memory = ("before it", "loaded", "first token", "in the end", "peak", "file")
    header = ("", "load, ms", "start to first token, s", *memory)
    table("Loading; resident MB, anonymous + file, and the file's", header, rows)


def say(line: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Do one stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("build", "run", "sharing"))
    add_stack_options(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="of a prompt, a round")
    parser.add_argument("--steps", type=int, default=32, help="of decoding, a round")
    parser.add_argument(
        "--json", type=Path, help="where to write all figures, as results/"
    )
    parser.add_argument(
        "--limits", action="store_true", help="measure what the machine can do, too"
    )
    parser.add_argument("--plot", type=Path, help="where to draw that, .svg or .png")
    options = parser.parse_args()
    match options.stage:
        case "build":
            build([*cases(options), *sharing_cases(options)])
        case "run":
            compare(list(cases(options)), options)
        case _:
            measure_sharing(options)


if __name__ == "__main__":
    main()
