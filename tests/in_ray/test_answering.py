"""Rows of a batch on actors: all are answered, also where actors are lost."""

import io
import json

import pytest

from kvc.ray import BundleConfig, RayAnswering
from kvc.runtime import load
from kvc.schema.errors import BadSetting, FileProblem, NodeDiffers
from kvc.serving.batch import Answering, Identity, Job, Journal, Prompts
from kvc.serving.scheduling import Limits

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
ROWS = [{"prompt": f"row {n}", "id": f"r{n}"} for n in range(40)]
ROWS[7] = {"prompt": ""}


def outcomes_of(answerer, folder, rows=ROWS, watch=lambda _: None):
    """Run rows; return their outcomes in order."""
    file = io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    with answerer, Journal.begin(folder / "journal", Identity("", "", "")) as journal:
        Job(file, journal, watch).run(answerer)
        return [journal.outcome(number + 1) for number in range(len(rows))]


def config(bundle, **settings):
    more = {"sampling_params": {"max_tokens": 20}, "limits": Limits(rows=2)}
    return BundleConfig(model_source=str(bundle), **(more | settings))


@pytest.fixture
def digest(bundle):
    with load(bundle) as program:
        return program.digest


@pytest.fixture
def expected(bundle, tmp_path):
    with load(bundle) as program:
        prompts = Prompts(program, {"max_tokens": 20})
        return outcomes_of(Answering(program, prompts, Limits(rows=2)), tmp_path)


def test_two_actors_make_what_one_process_makes(
    cluster, bundle, digest, expected, tmp_path
):
    found = outcomes_of(RayAnswering(config(bundle, concurrency=2), digest), tmp_path)
    assert found == expected
    assert b"at least one token" in found[7]


def test_rows_of_a_lost_actor_are_given_to_another(
    cluster, bundle, digest, expected, tmp_path
):
    answering = RayAnswering(config(bundle), digest)
    (first,) = answering._actors
    left = [1]

    def watch(progress):
        if progress.new > 5 and left.pop(0) if left else False:
            cluster.kill(first.handle)

    assert outcomes_of(answering, tmp_path, watch=watch) == expected
    assert not left


def test_a_node_with_another_bundle_is_refused(cluster, bundle):
    with pytest.raises(NodeDiffers, match=f"{bundle} on node"):
        RayAnswering(config(bundle), "0" * 64)


def test_why_an_actor_cannot_load_the_bundle_is_told(cluster, bundle):
    with pytest.raises(FileProblem, match="No such file"):
        RayAnswering(config(bundle.with_name("no.kvc")), "")


def test_more_actors_than_processors_are_refused_rather_than_waited_for(
    cluster, bundle
):
    with pytest.raises(BadSetting, match=r"at most 4 processors.* 3 actors of 2"):
        RayAnswering(config(bundle, concurrency=3, num_cpus=2), "")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"concurrency": 0}, "concurrency: expected a whole number of 1 or more"),
        ({"concurrency": (3, 2)}, "the least number of actors, then the most"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"num_cpus": True}, "num_cpus"),
        ({"max_concurrent_batches": 0}, "max_concurrent_batches"),
    ],
)
def test_impossible_numbers_are_refused(settings, reason):
    with pytest.raises(BadSetting, match=reason):
        config("model.kvc", **settings)


@pytest.mark.exhaustive
def test_a_row_that_ends_every_actor_fails_and_the_others_are_answered(
    cluster, bundle, digest, expected, tmp_path
):
    answering = RayAnswering(config(bundle), digest)
    hear = answering._hear

    def kill_those_with_row_12(seconds):
        for actor in answering._actors:
            if 12 in actor.held:
                cluster.kill(actor.handle)
        hear(seconds)

    answering._hear = kill_those_with_row_12
    found = outcomes_of(answering, tmp_path)
    failed = json.loads(found[11])["error"]
    assert failed["code"] == "ActorLost"
    assert "3 actors that had the row were lost" in failed["message"]
    assert found[:11] + found[12:] == expected[:11] + expected[12:]
