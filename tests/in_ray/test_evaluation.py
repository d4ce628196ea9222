"""`evaluate`: windows of a text on actors make the very figures of one process."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from scored_model import KINDS, write_scored

from kvc.ray import EvaluationConfig, evaluate, evaluation
from kvc.ray.evaluator import Bundle
from kvc.ray.pool import Places, Pool
from kvc.runtime import load
from kvc.runtime.scoring import evaluate as evaluate_here
from kvc.schema.errors import (
    ActorLost,
    BadSetting,
    FileProblem,
    NodeDiffers,
    UnknownName,
)
from kvc.tools.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
TEXT = "def bits(text):\n    return 8 * len(text)  # and so on, 100 €\n" * 4


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    return [
        str(write_scored(folder / f"{kind}.kvc", *KINDS[kind]))
        for kind in ("forward", "prefill_all", "decode")
    ]


def config(**settings):
    return EvaluationConfig(**({"window": 20, "stride": 7} | settings))


def figures(found):
    """Leave out the speed, which is never the same."""
    return [replace(one, tokens_per_second=0.0) for one in found]


def measured_here(bundles, against):
    raw = TEXT.encode()
    with load(against) as other:
        found = []
        for bundle in bundles:
            with load(bundle) as program:
                found.append(evaluate_here(bundle, program, raw, 20, 7, None, other))
    return found


def test_two_actors_find_what_one_process_finds(cluster, bundles):
    told = []
    found = evaluate(
        bundles,
        TEXT,
        config(concurrency=2, against=bundles[0]),
        lambda *progress: told.append(progress),
    )
    assert figures(found) == figures(measured_here(bundles, bundles[0]))
    assert found[2].divergence > 0
    assert all(one.tokens_per_second > 0 for one in found)
    total = len(TEXT.encode())
    assert told[-1] == (bundles[2], total - 1, total)
    order = [bundles.index(bundle) for bundle, _, _ in told]
    assert order == sorted(order)


def test_a_text_is_a_file_too(cluster, bundles, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    (one,) = evaluate(bundles[:1], file, config())
    (other,) = evaluate(bundles[:1], TEXT.encode(), config(window=None, stride=None))
    assert (one.window, other.window) == (20, 41)
    with load(bundles[0]) as program:
        expected = evaluate_here(bundles[0], program, TEXT.encode(), 20, 7)
    assert one.bits_per_token == expected.bits_per_token
    with pytest.raises(FileProblem):
        evaluate(bundles[:1], tmp_path / "nowhere", config())


def test_windows_of_a_lost_actor_go_to_another(cluster, bundles, monkeypatch):
    give, given = Pool._give, []

    def kill_the_fifth(pool, actor, jobs):
        before = actor.job
        give(pool, actor, jobs)
        if before is None and actor.job is not None:
            given.append(actor.job)
            if len(given) == 5:
                cluster.kill(actor.handle)

    monkeypatch.setattr(Pool, "_give", kill_the_fifth)
    (found,) = figures(evaluate(bundles[:1], TEXT, config()))
    with load(bundles[0]) as program:
        expected = evaluate_here(bundles[0], program, TEXT.encode(), 20, 7)
    assert found == figures([expected])[0]
    assert len(given) == len(set(given)) + 1  # one of them twice


@pytest.mark.exhaustive
def test_a_job_that_ends_every_actor_is_given_up(cluster):
    class Ending:  # of a function, as actors cannot import a test
        def __init__(self, factor):
            self._factor = factor

        def ready(self):
            pass

        def do(self, job):
            if job == 1:
                os._exit(1)
            return job * self._factor

    with Pool(Ending, 10, Places(1, 1, {})) as pool:
        found = dict(pool.run([0, 1, 2]))
    assert (found[0], found[2]) == (0, 20)
    assert isinstance(found[1], ActorLost)
    assert "3 actors were lost" in str(found[1])


def test_a_node_with_another_bundle_is_refused(cluster, bundles, monkeypatch):
    monkeypatch.setattr(evaluation, "Bundle", lambda path, _: Bundle(path, "0" * 64))
    with pytest.raises(NodeDiffers, match=r"forward\.kvc on node .*another bundle"):
        evaluate(bundles[:1], TEXT, config())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"concurrency": 0}, "concurrency: expected a whole number of 1 or more"),
        ({"num_cpus": 1.5}, "num_cpus: expected a whole number of 1 or more"),
        ({"window": 50}, "window: expected up to 41"),
        ({"stride": 20}, "stride"),
        ({"concurrency": 9}, "at most 4 processors"),
    ],
)
def test_impossible_settings_are_refused(cluster, bundles, settings, reason):
    with pytest.raises(BadSetting, match=reason):
        evaluate(bundles[:1], TEXT, config(**settings))


def test_what_cannot_be_scored_is_refused(cluster, bundles, tmp_path):
    with pytest.raises(BadSetting, match="text: expected 2 tokens or more"):
        evaluate(bundles[:1], "a", config())
    path = write_scored(tmp_path / "prefill.kvc", "prefill")
    with pytest.raises(UnknownName):
        evaluate([str(path)], TEXT, config())


@pytest.mark.exhaustive
def test_the_command_prints_the_same_with_and_without_ray(bundles, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    said = ["eval", "--against", bundles[0], *bundles, str(file), "--json"]
    there = ["--ray", "--address", "local", "--actors", "2", "--threads", "1"]
    here, over = (
        subprocess.run(
            [sys.executable, "-m", "kvc.tools", *said, *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        for more in ([], there)
    )
    speed = re.compile(r'"tokens_per_second": [^,]*')
    assert speed.sub("", over.stdout) == speed.sub("", here.stdout)
    assert len(json.loads(over.stdout)["bundles"]) == 3


def test_options_that_do_not_go_together_are_refused(bundles, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    for more in (["--actors", "2"], ["--ray", "--residency"]):
        done = CliRunner().invoke(main, ["eval", bundles[0], str(file), *more])
        assert done.exit_code == 2
        assert "--ray" in done.stderr
