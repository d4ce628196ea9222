"""`kvc batch --ray`: actors on a cluster that answer rows.

The journal and the output stay with this process.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvc.tools.cluster import Cluster, connected
from kvc.tools.options import Loading

if TYPE_CHECKING:
    from kvc.ray import RayAnswering
    from kvc.runtime.generation import Arguments
    from kvc.serving.scheduling import Limits


@dataclass(frozen=True, slots=True)
class Shared:
    """What all actors have.

    Attributes:
        bundle: the path of the bundle.
        settings: the settings of rows that say nothing else.
        limits: the limits of the scheduler of each actor.
        adapters: the files of adapters that rows can name, by name.
        loading: how to load the bundle.
    """

    bundle: str
    settings: "Arguments"
    limits: "Limits"
    adapters: Mapping[str, str]
    loading: Loading


@contextmanager
def on_cluster(
    cluster: Cluster, shared: Shared, digest: str
) -> Iterator["RayAnswering"]:
    """Connect to a cluster, and start actors that answer rows.

    Args:
        cluster: the cluster.
        shared: what all actors have.
        digest: the digest of the bundle.

    Raises:
        MissingPackage, click.ClickException: as `connected`.
        KvcError: as `RayAnswering`.
    """
    with connected(cluster, shared.loading.threads) as actors:
        from kvc.ray import BundleConfig, RayAnswering

        config = BundleConfig(
            model_source=shared.bundle,
            concurrency=actors.count,
            num_cpus=actors.threads,
            sampling_params=shared.settings,
            limits=shared.limits,
            adapters=shared.adapters,
            default_adapter=shared.loading.adapter,
            mode=shared.loading.mode,
        )
        with RayAnswering(config, digest) as answering:
            yield answering
