"""Names of models on a hub."""

import pytest

from kvc.schema.checkpoints.hub_names import why_not_fetched


@pytest.mark.parametrize(
    "name",
    ["Org/Model", "https://huggingface.co/Org/Model", "hf://Org/Model", "Org/Model/"],
)
def test_a_name_of_a_hub_is_to_be_downloaded(name):
    told = why_not_fetched(name)
    assert "`hf download Org/Model --local-dir Model`" in told
    assert told.endswith("give that folder, ./Model")


@pytest.mark.parametrize("name", ["Model", "./Model", "/a/Model", "../Model", "a/b/c"])
def test_any_other_name_is_no_folder(name):
    told = why_not_fetched(name)
    assert told == "there is no such folder, and kvc downloads nothing from a hub"
