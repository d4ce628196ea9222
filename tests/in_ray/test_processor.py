"""`build_processor`: generation as a step of a dataset's pipeline."""

import pytest

from kvc.ray import BundleConfig, build_processor
from kvc.runtime import generate, load
from kvc.schema.errors import BadSetting

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def answer(bundle, prompt, **settings):
    with load(bundle) as program, program.session() as session:
        return "".join(generate(session, prompt, **settings).text())


def answered(cluster, rows, config, *functions):
    context = cluster.data.DataContext.get_current()
    context.enable_progress_bars = False
    found = build_processor(config, *functions)(cluster.data.from_items(rows))
    return sorted(found.take_all(), key=lambda row: row["n"])


@pytest.fixture(autouse=True)
def data(cluster):
    pytest.importorskip("ray.data")


def test_rows_get_answers_by_settings_of_their_own(cluster, bundle):
    rows = [{"n": n, "said": f"row {n}"} for n in range(12)]
    rows[5]["said"] = ""
    config = BundleConfig(
        model_source=str(bundle), batch_size=4, sampling_params={"max_tokens": 6}
    )
    found = answered(
        cluster,
        rows,
        config,
        lambda row: {
            "prompt": row["said"],
            "sampling_params": {"max_tokens": 3} if row["n"] == 2 else {"stop": ["z"]},
        },
        lambda row: {**row, "shown": row["generated_text"].upper()},
    )
    assert [row["n"] for row in found] == list(range(12))
    for n, row in enumerate(found):
        if n == 5:
            assert (
                row["error"] == "BadRow: prompt: expected at least one token, got none"
            )
            assert row["generated_text"] == ""
            continue
        settings = (
            {"max_tokens": 3} if n == 2 else {"max_tokens": 6, "stop_strings": "z"}
        )
        text = answer(bundle, f"row {n}", **settings)
        assert (row["generated_text"], row["error"]) == (text, "")
        assert row["shown"] == text.upper()
        assert row["said"] == f"row {n}"
        assert row["num_input_tokens"] == len(f"row {n}")
    assert found[2]["num_generated_tokens"] == 3
    assert "__kvc_request" not in found[0]


@pytest.mark.exhaustive
def test_messages_and_schemas_do_not_get_the_keys_of_other_rows(cluster, bundle):
    # A table of Arrow gives all objects of a column the same keys.
    rows = [
        {
            "n": 0,
            "messages": [{"role": "user", "content": "a", "name": "x"}],
            "sampling_params": {"logit_bias": {"40": -100.0}, "max_tokens": 4},
        },
        {
            "n": 1,
            "messages": [{"role": "user", "content": "a"}],
            "sampling_params": {"logit_bias": {"41": -100.0}},
        },
    ]
    config = BundleConfig(model_source=str(bundle), sampling_params={"max_tokens": 5})
    found = answered(cluster, rows, config)
    assert [row["error"] for row in found] == ["", ""]
    assert [row["num_generated_tokens"] for row in found] == [4, 5]


@pytest.mark.exhaustive
def test_a_row_that_fails_ends_the_run_if_asked_for(cluster, bundle):
    config = BundleConfig(model_source=str(bundle), should_continue_on_error=False)
    with pytest.raises(Exception, match="at least one token"):
        answered(cluster, [{"n": 0, "prompt": ""}], config)


def test_a_processor_is_left_for_reading_or_nothing_would_ever_run(cluster, bundle):
    config = BundleConfig(model_source=str(bundle), concurrency=4)
    with pytest.raises(BadSetting, match="4 actors of 1 and 1 for reading"):
        answered(cluster, [{"n": 0, "prompt": "a"}], config)
