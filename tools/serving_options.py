"""Options of `kvc serve`: bundles and adapters by name, limits, access.

In: what the user wrote. Out: `Served`s for bundles, `Limits` for schedulers, and
`HttpLimits` and `Access` for the server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from kvc.schema.errors import FileProblem, reason_of
from kvc.tools.numbers import Number, WholeNumber
from kvc.tools.options import adapter_of, nbytes_of

if TYPE_CHECKING:
    from kvc.serving.http.limits import HttpLimits
    from kvc.serving.http.service import Access
    from kvc.serving.scheduling import Limits

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_NAMES: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"
)
_DAY: Final = 86_400
_MOST: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Served:
    """A bundle to serve.

    Attributes:
        name: the name of the model.
        path: the path of the bundle.
        adapters: the name, the file and the scale of each adapter.
    """

    name: str
    path: str
    adapters: tuple[tuple[str, str, float], ...] = ()


def bundles_of(texts: Sequence[str], adapters: Sequence[str]) -> list[Served]:
    """Return the bundles that NAME=BUNDLE and [MODEL:]NAME=FILE name.

    Raises:
        click.BadParameter: a name is impossible or taken, or there is no such model.
    """
    paths: dict[str, str] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        named = equals and not Path(text).exists()
        name, path = (before, after) if named else (Path(text).stem, text)
        _check_name(name, "BUNDLE")
        if name in paths:
            _fail(f"{name} is the name of two models; NAME={path} gives another")
        paths[name] = path
    found: dict[str, list[tuple[str, str, float]]] = {name: [] for name in paths}
    for text in adapters:
        model, name, file, scale = _adapter(text, tuple(paths))
        if any(name == one for one, _, _ in found[model]):
            _fail(f"{name} is the name of two adapters", "--adapter")
        found[model].append((name, file, scale))
    return [Served(name, paths[name], tuple(found[name])) for name in paths]


def _adapter(text: str, models: Sequence[str]) -> tuple[str, str, str, float]:
    """Parse [MODEL:]NAME=FILE[,scale=S] into model, name, file and scale."""
    before, equals, after = text.partition("=")
    model, colon, name = before.rpartition(":")
    if not equals or not after:
        _fail(f"expected [MODEL:]NAME=FILE, found {text!r}", "--adapter")
    if not colon and len(models) == 1:
        model = models[0]
    if model not in models:
        listed = ", ".join(models)
        _fail(f"expected MODEL:NAME=FILE, with one of {listed}; found {text!r}")
    _check_name(name, "--adapter")
    file, scale = adapter_of(after)
    return model, name, file, scale


def _check_name(name: str, hint: str) -> None:
    if not name or not set(name) <= _NAMES:
        _fail(f"expected a name of letters, digits and ._-/, found {name!r}", hint)


def _fail(message: str, hint: str = "BUNDLE") -> NoReturn:
    raise click.BadParameter(message, param_hint=hint)


@dataclass(frozen=True, slots=True)
class Serving:
    """How to serve.

    Attributes:
        host, port: the address.
        limits: the limits of schedulers.
        http: the limits of the server.
        access: who may use it.
        drain: for how many seconds answers may go on at the end.
    """

    host: str
    port: int
    limits: "Limits"
    http: "HttpLimits"
    access: "Access"
    drain: float


def serving_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a server to a command, which receives them as `serving`."""

    @wraps(command)
    def with_serving(**given: object) -> None:
        mine = {name: given.pop(name) for name in _OPTIONS}
        command(serving=_serving(**mine), **given)  # type: ignore[arg-type]  # click's

    for _, option in reversed(_OPTIONS.items()):
        option(with_serving)
    return with_serving


def _serving(
    host: str,
    port: int,
    api_key_file: str | None,
    allow_origin: tuple[str, ...],
    max_rows: int | None,
    max_ram: str | None,
    max_stall: float,
    interval: float,
    capacity: int | None,
    max_tokens: int,
    max_queue: int,
    max_body: str,
    max_connections: int,
    timeout: float,
    read_timeout: float,
    drain: float,
) -> Serving:
    from kvc.serving.http.limits import HttpLimits
    from kvc.serving.http.service import Access
    from kvc.serving.scheduling import Limits

    ram = None if max_ram is None else nbytes_of(max_ram, "--max-ram", 1)
    limits = Limits(
        rows=max_rows,
        nbytes=ram,
        queue=max_queue,
        stall=max_stall / 1000,
        interval=interval / 1000,
        capacity=capacity,
    )
    http = HttpLimits(
        body=nbytes_of(max_body, "--max-body", 1),
        tokens=max_tokens,
        queue=max_queue,
        seconds=timeout,
        reading=read_timeout,
        idle=read_timeout,
        connections=max_connections,
    )
    keys = () if api_key_file is None else read_keys(api_key_file)
    access = Access(keys, _hosts(host), frozenset(allow_origin))
    return Serving(host, port, limits, http, access, drain)


def _hosts(host: str) -> frozenset[str]:
    """Return the hosts that requests may name: of a loopback address its names."""
    loopback = host.lower() in _LOOPBACK or host.startswith("127.")
    return frozenset({*_LOOPBACK, host.lower()}) if loopback else frozenset()


def read_keys(path: str) -> tuple[bytes, ...]:
    """Return the keys in a file: one on each line, empty lines do not count.

    Raises:
        FileProblem: the file cannot be read, or has no key.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except (OSError, ValueError) as error:
        raise FileProblem(path=path, reason=reason_of(error)) from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise FileProblem(path=path, reason="it has no key, one on each line")
    return keys


_OPTIONS: Final[dict[str, Callable[[Callable[..., None]], Callable[..., None]]]] = {
    "host": click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        metavar="NAME",
        help="The address to listen on; 0.0.0.0 is all of this machine.",
    ),
    "port": click.option(
        "--port",
        type=WholeNumber(0, 65_535),
        default=8080,
        show_default=True,
        metavar="N",
        help="The port; 0 takes any free one.",
    ),
    "api_key_file": click.option(
        "--api-key-file",
        metavar="FILE",
        help="Requests need one of the keys in FILE, which has one on each line.  "
        "[default: no key is needed]",
    ),
    "allow_origin": click.option(
        "--allow-origin",
        multiple=True,
        metavar="ORIGIN",
        help="Let web pages of ORIGIN, as https://example.org, use the server; * lets "
        "all. Repeatable.",
    ),
    "max_rows": click.option(
        "--max-rows",
        type=WholeNumber(1),
        metavar="N",
        help="Make at most N answers at once.  [default: as the bundle allows, at most "
        "16]",
    ),
    "max_ram": click.option(
        "--max-ram",
        metavar="BYTES",
        help="Let the caches of each model take at most BYTES, as 2G.",
    ),
    "max_stall": click.option(
        "--max-stall",
        type=Number(1, 60_000),
        default=200,
        show_default=True,
        metavar="MS",
        help="Let new prompts hold up running answers for at most MS milliseconds.",
    ),
    "interval": click.option(
        "--interval",
        type=Number(0, 60_000),
        default=20,
        show_default=True,
        metavar="MS",
        help="Send the tokens of MS milliseconds together; 0 sends each at once.",
    ),
    "capacity": click.option(
        "--capacity",
        type=WholeNumber(1),
        metavar="N",
        help="Let prompt and answer have at most N tokens.  [default: as the bundle "
        "allows]",
    ),
    "max_tokens": click.option(
        "--max-tokens",
        type=WholeNumber(1, _MOST),
        default=4096,
        show_default=True,
        metavar="N",
        help="End answers after N tokens.",
    ),
    "max_queue": click.option(
        "--max-queue",
        type=WholeNumber(1, _MOST),
        default=256,
        show_default=True,
        metavar="N",
        help="Refuse requests while N others wait.",
    ),
    "max_body": click.option(
        "--max-body",
        default="20M",
        show_default=True,
        metavar="BYTES",
        help="Refuse requests of more than BYTES.",
    ),
    "max_connections": click.option(
        "--max-connections",
        type=WholeNumber(1, _MOST),
        default=512,
        show_default=True,
        metavar="N",
        help="Refuse connections beyond N.",
    ),
    "timeout": click.option(
        "--timeout",
        type=Number(0.1, _DAY),
        default=600,
        show_default=True,
        metavar="SECONDS",
        help="End answers SECONDS after they were asked for.",
    ),
    "read_timeout": click.option(
        "--read-timeout",
        type=Number(0.1, _DAY),
        default=30,
        show_default=True,
        metavar="SECONDS",
        help="Drop requests that do not arrive within SECONDS.",
    ),
    "drain": click.option(
        "--drain",
        type=Number(0, _DAY),
        default=30,
        show_default=True,
        metavar="SECONDS",
        help="At the end let answers go on for SECONDS.",
    ),
}
