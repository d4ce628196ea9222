"""One client's speed against that of the bare model, measured in the same round.

In: the options of `serving.py`. Out: tokens a second of `kvc bench` or `llama-bench`
after a prompt as long as the client's, and whether the comparison stands.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from serving_figures import comparable_rounds, middle, table
from serving_loads import Told
from serving_processes import printed


def one_client(name: str, options: argparse.Namespace) -> Told:
    """Return how many tokens a second a server's model makes without a server."""
    depth, tokens = options.prompt + options.shared, options.answer
    sizes = ["-p", "0", "-n", str(tokens), "-d", str(depth), "-r", "1"]
    sizes += ["--threads" if name == "kvc" else "-t", str(options.threads)]
    if name == "kvc":
        command = [sys.executable, "-P", "-m", "kvc.tools", "bench", options.kvc]
        (bundle,) = json.loads(printed([*command, *sizes, "--json"]))["bundles"]
        (test,) = bundle["tests"]
        return {"alone_per_s": test["tokens_per_second"]["median"]}
    command = [options.llama_bench, "-m", options.gguf, *sizes, "-o", "json"]
    (found,) = json.loads(printed(command))
    return {"alone_per_s": found["avg_ts"]}


def standing_rounds(found: Mapping[str, Sequence[Told]]) -> list[int]:
    """Return the rounds whose comparison stands: all, if that was not measured."""
    told = found.get("llama-server") or next(iter(found.values()))
    if "alone_per_s" not in told[0] or "llama-server" not in found:
        return list(range(len(told)))
    return comparable_rounds(*_speeds(told))


def _speeds(told: Sequence[Told]) -> tuple[list[float], list[float]]:
    """Return the speeds of one client and of the bare model, by round."""
    served = [one["loads"]["1"].one_per_s for one in told]
    return served, [one["alone_per_s"] for one in told]


def one_report(found: Mapping[str, Sequence[Told]]) -> str:
    """Return a table of shares, and a verdict on the rounds of llama-server."""
    rows = {}
    for name, told in found.items():
        served, alone = _speeds(told)
        shares = [a / b for a, b in zip(served, alone, strict=True)]
        figures = (middle(served), middle(alone), middle(shares), min(shares))
        rows[name] = [f"{figure:.2f}" for figure in figures]
    titles = ["one client tokens/s", "alone tokens/s", "share", "least share"]
    return "\n".join([table(rows, titles), *_verdict(found)])


def _verdict(found: Mapping[str, Sequence[Told]]) -> list[str]:
    count = len(next(iter(found.values())))
    void = sorted(set(range(count)) - set(standing_rounds(found)))
    if not void:
        return []
    numbers = ", ".join(str(number + 1) for number in void)
    return [
        f"VOID: round {numbers} of {count}. In them llama-server with one client made "
        "less than 0.8 of what llama-bench makes, or more than 1.25: it is badly set "
        "up here, or the machine was busy. Ratios are of other rounds alone."
    ]
