"""The package Ray, which is needed only where a cluster is used; what a cluster has."""

from types import ModuleType
from typing import Any

from kvc.schema.errors import BadSetting, MissingPackage, reason_of


def find_ray() -> ModuleType:
    """Return the package Ray.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackage(
            what="running over a cluster",
            package="ray",
            install="pip install 'kvc[ray]'",
            reason=reason_of(error),
        ) from error
    found: ModuleType = ray
    return found


def check_processors(ray: Any, actors: int, each: int, spare: int = 0) -> None:  # noqa: ANN401
    """Check that a cluster has processors for all actors: without them they wait.

    Args:
        ray: the package Ray, connected to a cluster.
        actors: the number of actors.
        each: the processors of an actor.
        spare: how many processors others need.

    Raises:
        BadSetting: there are too few.
    """
    found = int(ray.cluster_resources().get("CPU", 0))
    if actors * each + spare > found:
        more = f" and {spare} for reading" if spare else ""
        expected = f"at most {found} processors, which the cluster has"
        told = f"{actors} actors of {each}{more}"
        raise BadSetting(name="concurrency", expected=expected, found=told)
