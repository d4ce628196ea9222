"""Bundles whose lists or tables mislead are refused by an error of kvc."""

from dataclasses import replace

import numpy as np
import pytest
from libkvc_models import kind_bundle
from listed_bundles import changed_list, resealed
from sealing import parts, seal

from kvc.runtime import load
from kvc.schema.codec import decode, encode
from kvc.schema.errors import BadProgram

TOKENS = np.array([[1, 2, 3]])


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    return kind_bundle("linear", tmp_path_factory.mktemp("linear") / "model.kvc")


def program_of(path):
    return decode(parts(path)[1], "bundle")


@pytest.mark.parametrize("name", ["no kernel", "call", "ask"])
def test_kernels_that_files_may_not_name(name, linear, tmp_path):
    bounds = program_of(linear).bounds
    other = replace(bounds, kernels=(name, *bounds.kernels[1:]))
    path = resealed(linear, other, tmp_path / "changed.kvc")
    refused = pytest.raises(BadProgram, match="there is no kernel")
    with load(path) as program, program.session() as session, refused:
        session.prefill(TOKENS)


def test_lists_without_steps_run(linear, tmp_path):
    bounds = program_of(linear).bounds
    runs = ("operand", "integer", "number")
    empty = ["step_kernels", *(f"{x}_ends" for x in runs), *(f"{x}s" for x in runs)]
    empty += ["varied_numbers", "varied_forms"]
    for number, one in enumerate(bounds.lists):
        none = {name: one.columns[name][:0] for name in empty}
        bounds = changed_list(bounds, number, **none)
    path = resealed(linear, bounds, tmp_path / "changed.kvc")
    with load(path) as program, program.session() as session:
        assert np.shape(session.prefill(TOKENS))[0] == 1


def test_an_advance_by_a_size_that_no_input_has(linear, tmp_path):
    blobs, raw = parts(linear)
    program = decode(raw, "bundle")
    prefill, decoder = program.methods
    (own,), (other,) = prefill.advances, decoder.advances
    advances = (replace(other, tokens=own.tokens),)
    changed = replace(program, methods=(prefill, replace(decoder, advances=advances)))
    path = tmp_path / "changed.kvc"
    path.write_bytes(seal(blobs, encode(changed)))
    with pytest.raises(BadProgram, match="determines the sizes"):
        load(path)
