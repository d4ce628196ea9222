"""A local cluster of Ray, which all tests of this folder share."""

import os
import warnings

import pytest
from adding_model import write_chat

try:
    import ray
except ImportError:  # it is no part of the development environment
    collect_ignore_glob = ["*"]
PROCESSORS = 4  # as Ray counts them: actors of tests mostly wait


@pytest.fixture(scope="session")
def cluster():
    """Start a cluster with room for three actors and a reader."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    with warnings.catch_warnings(action="ignore"):
        ray.init(
            address="local",
            num_cpus=PROCESSORS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return write_chat(tmp_path_factory.mktemp("ray") / "adding.kvc")
