"""Bundles of tiny decoders of several rows, made once for all tests here."""

import drafting_models
import pytest
from drafting_rows import write_checked
from made_once import MadeOnce


@pytest.fixture(scope="session")
def bundles(tmp_path_factory):
    """The path of a bundle by its kind: a name of `drafting_rows`, or "one row"."""
    folder = tmp_path_factory.mktemp("served")

    def written(kind):
        path = folder / f"{kind}.kvc"
        if kind == "one row":
            return drafting_models.write_decoder(path)
        return write_checked(path, kind, seq=32)

    return MadeOnce(written)
