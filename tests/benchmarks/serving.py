"""Load for servers of OpenAI's HTTP: many clients, one client, or two turns of a chat.

    python tests/benchmarks/serving.py --url http://127.0.0.1:8000 --clients 8
    python tests/benchmarks/serving.py --kvc BUNDLE \
      --llama-server PATH --gguf FILE --clients 1 4 8 --rounds 3
    python tests/benchmarks/serving.py ... --turns
    python tests/benchmarks/serving.py ... --one --llama-bench PATH

Servers are started anew in each round, in turns, on the same machine with the same
number of threads and the same prompts, and stand alone while they are measured. Each
client sends its next request when its last answer has ended. Prompts are words, unlike
one another (`--shared N`: after a system prompt of N tokens that all share). Answers
have as many tokens as asked for: llama-server is told `ignore_eos`, kvc
`min_new_tokens`; of other servers, short answers are counted. Prints medians of rounds
and ratios of the same rounds, or with `--json` all rounds as JSON.

A comparison with llama-server is void in rounds in which one client gets less than 0.8
of what llama-bench makes, or more than 1.25: `--one` measures that, says so, and leaves
such rounds out of ratios. kvc's one client is measured beside `kvc bench`. The column
`others s` is processor time of other processes: two threads that wait for each other,
as llama.cpp's, become ten times slower where others want the same cores.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from urllib.parse import urlsplit

from serving_client import Place
from serving_figures import Figures
from serving_loads import Load, Told, load_figures, turn_times
from serving_one import one_client, one_report
from serving_processes import Start, running
from serving_reports import KVC, LLAMA, load_report, turn_report

Found = dict[str, list[Told]]


def starts(options: argparse.Namespace) -> list[Start]:
    """Return the servers that the options name, kvc first."""
    made, most = [], max(options.clients)
    tokens = options.prompt + options.answer + options.shared + 64
    if options.turns:
        tokens = 2 * tokens
    if options.kvc:
        command = [sys.executable, "-P", "-m", "kvc.tools", "serve", options.kvc]
        command += ["--port", "{port}", "--threads", str(options.threads)]
        command += options.kvc_options.split()
        extra = (("min_new_tokens", options.answer),)
        made.append(Start(KVC, tuple(command), extra))
    if options.llama_server:
        command = [options.llama_server, "-m", options.gguf, "--host", "127.0.0.1"]
        command += ["--port", "{port}", "-t", str(options.threads)]
        command += ["-tb", str(options.threads), "-np", str(most)]
        command += ["-c", str(most * tokens), "--no-webui"]
        command += options.llama_options.split()
        made.append(Start(LLAMA, tuple(command), (("ignore_eos", True),)))
    return made


@contextmanager
def served(
    start: Start | None, options: argparse.Namespace
) -> Iterator[tuple[Place, int | None]]:
    """Yield a server that runs: one that is started, or the one of `--url`."""
    if start is not None:
        with running(start) as (place, pid):
            yield place, pid
        return
    url = urlsplit(options.url)
    place = Place(url.hostname or "", url.port or 80, options.model, key=options.key)
    yield place, options.pid


def measure(options: argparse.Namespace) -> Found:
    """Return what each round of each server told, by the names of the servers."""
    servers: list[Start | None] = list(starts(options)) or [None]
    found: Found = {}
    load = Load.of(options)
    for number in range(options.rounds):
        turn = servers if number % 2 == 0 else servers[::-1]
        for start in turn:
            name = start.name if start else options.url
            with served(start, options) as (place, pid):
                place = replace(place, seconds=options.timeout)
                load.count_words(place)
                if options.turns:
                    told: Told = turn_times(load, place, number)
                else:
                    told = load_figures(load, place, pid, number)
            if options.one and start:
                told |= one_client(start.name, options)
            found.setdefault(name, []).append(told)
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
    return found


def plain(value: object) -> object:
    """Return a value as JSON has it: what is not known, a NaN here, is null there."""
    if isinstance(value, Figures):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; ends the program if they are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--url", help="a server that runs already")
    add("--pid", type=int, help="its process, for processor time and memory")
    add("--model", default="", help="the model to ask it for")
    add("--key", default="", help="its API key")
    add("--kvc", metavar="BUNDLE", help="start `kvc serve` with this bundle")
    add("--kvc-options", default="", help="more options for `kvc serve`")
    add("--llama-server", metavar="PATH", help="start this llama-server")
    add("--llama-options", default="", help="more options for llama-server")
    add("--llama-bench", metavar="PATH", help="its llama-bench, for --one")
    add("--gguf", metavar="FILE", help="the model for llama-server")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=3)
    add("--clients", type=int, nargs="+", help="1 4 8; with --one or --turns 1")
    add("--requests", type=int, default=2, help="of each client in a round")
    add("--prompt", type=int, default=128, help="tokens; 2000 with --turns")
    add("--answer", type=int, default=64, help="tokens")
    add("--shared", type=int, default=0, help="tokens of a shared system prompt")
    add("--completions", action="store_true", help="without a chat template")
    add("--turns", action="store_true", help="two turns of a chat of one client")
    add("--one", action="store_true", help="one client against the bare model")
    add("--timeout", type=float, default=600.0, help="seconds of one answer")
    add("--json", action="store_true")
    options = parser.parse_args(arguments)
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if bool(options.url) == bool(options.kvc or options.llama_server):
        parser.error("name --url, or servers to start")
    if options.llama_server and not options.gguf:
        parser.error("--llama-server needs --gguf")
    if options.one and options.llama_server and not options.llama_bench:
        parser.error("--one needs --llama-bench")
    alone = options.one or options.turns
    options.clients = options.clients or ([1] if alone else [1, 4, 8])
    if options.one and 1 not in options.clients:
        parser.error("--one needs one client too: --clients 1 ...")
    if options.turns:
        options.clients, options.prompt = [1], max(options.prompt, 2000)


def main() -> None:
    """Measure, and print what was found."""
    options = options_of(sys.argv[1:])
    found = measure(options)
    if options.json:
        print(json.dumps(plain(found), indent=1, allow_nan=False))
        return
    print(turn_report(found) if options.turns else load_report(found))
    if options.one:
        print(one_report(found))


if __name__ == "__main__":
    main()
