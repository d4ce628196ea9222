"""`kvc batch --ray` as a command, and on a cluster of two nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore")]
KVC = Path(sys.executable).parent / "kvc"
ROWS = [{"prompt": f"row {n}"} for n in range(60)]


def batch(folder, bundle, *options):
    command = [
        KVC,
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--bundle",
        bundle,
        "-n",
        90,
    ]
    return subprocess.Popen(
        [*map(str, command), *map(str, options)], cwd=folder, stderr=subprocess.PIPE
    )


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / name for name in ("here", "there")]
    for folder in made:
        folder.mkdir()
        content = "".join(json.dumps(row) + "\n" for row in ROWS)
        (folder / "in.jsonl").write_text(content)
    return made


def test_a_killed_run_over_actors_goes_on_to_the_bytes_of_one_process(folders, bundle):
    here, there = folders
    assert batch(here, bundle).wait() == 0
    running = batch(there, bundle, "--ray", "--address", "local", "--max-rows", 1)
    journal = there / "out.jsonl.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        assert running.poll() is None
    running.kill()
    running.communicate()
    assert 5 <= journal.read_bytes().count(b"\n") < 61
    running = batch(there, bundle, "--ray", "--address", "local", "--resume")
    told = running.communicate()[1].decode()
    assert running.returncode == 0, told
    assert "done before stay" in told
    assert (there / "out.jsonl").read_bytes() == (here / "out.jsonl").read_bytes()


def test_two_nodes_share_the_rows(folders, bundle):
    from ray.cluster_utils import Cluster

    here, there = folders
    assert batch(here, bundle).wait() == 0
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        nodes.add_node(num_cpus=1)
        running = batch(there, bundle, "--ray", "--address", nodes.address)
        told = running.communicate()[1].decode()
        assert running.returncode == 0, told
    finally:
        nodes.shutdown()
    assert (there / "out.jsonl").read_bytes() == (here / "out.jsonl").read_bytes()


def test_a_cluster_that_is_not_there_is_told(folders, bundle):
    running = batch(folders[0], bundle, "--ray", "--address", "127.0.0.1:1")
    told = running.communicate(timeout=120)[1].decode()
    assert running.returncode != 0
    assert "cannot connect to the cluster 127.0.0.1:1" in told


def test_options_of_a_cluster_go_with_ray(folders, bundle):
    running = batch(folders[0], bundle, "--actors", 2)
    assert "--address and --actors go with --ray" in running.communicate()[1].decode()
    assert running.returncode == 2
