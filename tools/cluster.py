"""`--ray`, `--address` and `--actors`: options of commands that run over a cluster.

A command decorated with `cluster_options` gets one argument `cluster`; `connected`
connects to it, and `Actors` says how many actors of how many threads it has.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import click

from kvc.tools.numbers import WholeNumber

_PATIENCE: Final = 10.0  # seconds
_QUIET: Final = {"log_to_driver": False, "logging_level": "error"}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of Ray.

    Attributes:
        address: its address; None for what RAY_ADDRESS says, else a cluster that runs
            on this machine, else one that ends with the command.
        actors: the number of actors; None for one on each node.
    """

    address: str | None
    actors: int | None


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster to a command, which receives them as `cluster`."""

    @click.option(
        "--ray",
        "uses_ray",
        is_flag=True,
        help="Let actors of a Ray cluster do the work (kvc[ray]). Bundles and adapters "
        "have the same path on all nodes.",
    )
    @click.option(
        "--address",
        metavar="HOST:PORT",
        help="The address of the cluster; local for one of this machine that ends with "
        "the command.  [default: that of RAY_ADDRESS, else one that runs here, else "
        "local]",
    )
    @click.option(
        "--actors",
        type=WholeNumber(min=1),
        metavar="N",
        help="The number of actors, of --threads processors each.  [default: one on "
        "each node, with all processors]",
    )
    @wraps(command)
    def with_cluster(
        uses_ray: bool, address: str | None, actors: int | None, **others: object
    ) -> None:
        if not uses_ray and (address is not None or actors is not None):
            raise click.UsageError("--address and --actors go with --ray")
        cluster = Cluster(address, actors) if uses_ray else None
        command(cluster=cluster, **others)

    return with_cluster


@dataclass(frozen=True, slots=True)
class Actors:
    """The actors of a command: how many, and the threads and processors of each."""

    count: int
    threads: int


@contextmanager
def connected(cluster: Cluster, threads: int | None) -> Iterator[Actors]:
    """Connect to a cluster; disconnect at the end.

    Args:
        cluster: the cluster.
        threads: the threads of an actor; None to share out all processors.

    Raises:
        MissingPackage: Ray is not installed.
        click.ClickException: there is no cluster at the address.
    """
    from kvc.ray.package import find_ray

    ray = find_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _check_listening(cluster.address)
        ray.init(address=cluster.address, include_dashboard=None, **_QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        told = f"cannot connect to the cluster {cluster.address}: {error}"
        raise click.ClickException(told) from error
    try:
        yield _actors(ray, cluster, threads)
    finally:
        ray.shutdown()


def _check_listening(address: str | None) -> None:
    """Check that a host listens: Ray tries for minutes.

    Raises:
        OSError: it does not.
    """
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), _PATIENCE).close()


def _actors(ray: Any, cluster: Cluster, threads: int | None) -> Actors:  # noqa: ANN401
    """Return the actors: as many as there are nodes by default."""
    processors = [
        int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]
    ]
    able = [count for count in processors if count]
    actors = cluster.actors or max(1, len(able))
    if threads is None:
        each = -(-actors // max(1, len(able)))  # actors of a node
        threads = max(1, min(able, default=1) // each)
    return Actors(actors, threads)
