"""The package Ray, which is needed only where a cluster is used."""

from types import ModuleType

from kvc.schema.errors import MissingPackage, reason_of


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
