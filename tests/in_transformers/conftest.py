"""A tiny model, its folder and its exports, which these tests share."""

import pytest
from exported_models import Door, exported_to, model_of
from hf_folders import save_folder


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """An export of sessions of one row."""
    model, folder = model_of(), tmp_path_factory.mktemp("alone")
    return Door(model, folder, exported_to(folder, model, inputs_embeds=True))


@pytest.fixture(scope="session")
def together(tmp_path_factory):
    """An export of sessions of up to eight rows, with no method of all logits."""
    model, folder = model_of(), tmp_path_factory.mktemp("together")
    made = exported_to(folder, model, batch=8, all_logits=False)
    return Door(model, folder, made)


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A folder of transformers, with a tokenizer of words that are numbers."""
    return save_folder(tmp_path_factory.mktemp("source"), model_of())
