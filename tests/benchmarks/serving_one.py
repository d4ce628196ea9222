"""One client's speed against that of the bare model, measured in the same round.

In: the options of `serving.py`. Out: tokens a second of `kvc bench` or `llama-bench`
after a prompt as long as the client's, and whether the comparison stands.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from serving_figures import is_comparable, middle, table
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


def one_report(found: Mapping[str, Sequence[Told]]) -> str:
    """Return a table of shares, and a verdict on llama-server's."""
    rows, lines = {}, []
    for name, told in found.items():
        served = [one["loads"]["1"].one_per_s for one in told]
        alone = [one["alone_per_s"] for one in told]
        shares = [a / b for a, b in zip(served, alone, strict=True)]
        figures = (middle(served), middle(alone), middle(shares), min(shares))
        rows[name] = [f"{figure:.2f}" for figure in figures]
        if name == "llama-server" and not is_comparable(served, alone):
            lines.append(
                "VOID: llama-server with one client makes less than 0.8 of what "
                "llama-bench makes. It is badly set up here; compare nothing with it."
            )
    titles = ["one client tokens/s", "alone tokens/s", "share", "least share"]
    return "\n".join([table(rows, titles), *lines])
