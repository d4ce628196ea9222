"""`xnnpack.py sharing`: what a second method costs where it shares weights.

Four cases in turn: both methods in one bundle; a bundle for each, in one process; each
bundle alone. Where there are two bundles there are two sessions, so the second one's
memory counts a cache of its own: 5.9 MB for the prompt of 128 tokens.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping

from data_bench import Samples, spread, step, table
from xnnpack_rounds import describe_machine, measure
from xnnpack_stacks import Case, kvc

ONE_EACH = ("decode", "prefill")


def sharing_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the bundles: both methods, then each alone."""
    for recipe in options.recipes:
        yield kvc(options, recipe)
        for method in ONE_EACH:
            yield kvc(options, recipe, [method])


def measure_sharing(options: argparse.Namespace) -> None:
    """Measure each recipe and print."""
    missing = [c for c in sharing_cases(options) if not c.path.exists()]
    if missing:
        names = ", ".join(str(case.path) for case in missing)
        raise SystemExit(f"missing: {names}; build them")
    for recipe in options.recipes:
        both = kvc(options, recipe).path
        each = [kvc(options, recipe, [method]).path for method in ONE_EACH]
        paths = {
            "one bundle": [both],
            "two bundles": each,
            "`decode` alone": each[:1],
            "`prefill` alone": each[1:],
        }
        how = ["--threads", options.threads, "--repeats", options.repeats]
        how += ["--steps", options.steps]
        how += ["--reference"] if options.reference else []
        commands = {
            name: step(sys.executable, "xnnpack_kvc", "share", *bundles, *map(str, how))
            for name, bundles in paths.items()
        }
        found = measure(commands, paths, options.rounds, options.threads)
        nbytes = {
            name: sum(path.stat().st_size for path in bundles)
            for name, bundles in paths.items()
        }
        sys.stderr.write(f"{describe_machine()}\n")
        show(recipe, found, nbytes)


def show(recipe: str, found: Mapping[str, Samples], nbytes: Mapping[str, int]) -> None:
    """Print what each case takes, and what sharing changes."""
    keys = ("load_s", "decode_first_s", "prefill_first_s", "decode_s", "prefill_s")
    rows = []
    for name, samples in found.items():
        has = samples.rounds[0]
        times = [samples.ms(key) if key in has else "" for key in keys]
        second = samples.extra() if {"decode_anon", "prefill_anon"} <= set(has) else ""
        resident = [
            samples.memory(when) if f"{when}_anon" in has else ""
            for when in ("decode", "prefill")
        ]
        packed = samples.mb("prefill_packed") or samples.mb("decode_packed")
        files = f"{nbytes[name] / 1e6:,.3f}"
        rows.append([name, *times, *resident, second, packed, files])
    times_of = ("load", "first decode", "first prefill", "decode at 128", "prefill 128")
    memory = ("decode has run", "prefill has run", "added by that")
    title = f"{recipe}: milliseconds; resident MB, anonymous + file; MB"
    table(title, ("", *times_of, *memory, "packed weights", "files"), rows)
    ratios = {key: ratio(found, key) for key in ("decode_s", "prefill_s", "load_s")}
    table(
        "Time of one bundle, divided by that of two in the same round",
        ("decode", "prefill", "load"),
        [list(ratios.values())],
    )
    added = nbytes["one bundle"] - nbytes["`decode` alone"]
    sys.stdout.write(f"\nBytes that `prefill` adds to the file: {added:,}\n")


def ratio(found: Mapping[str, Samples], key: str) -> str:
    """Return a time of one bundle against two, round by round."""
    pairs = zip(found["one bundle"].of(key), found["two bundles"].of(key), strict=True)
    return spread([one / two for one, two in pairs])
