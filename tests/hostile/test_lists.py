"""A small share of the hostile bound lists, the same ones each day."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from libkvc import library
from listed_bundles import changed_list, resealed
from resident_memory import LINUX

from kvc.runtime import load
from kvc.schema.codec import decode
from kvc.schema.errors import BadProgram

CAMPAIGN = Path(__file__).with_name("lists.py")


@LINUX
def test_python_and_libkvc_agree_on_hostile_lists(tmp_path):
    if not hasattr(library(), "kvc_open"):
        pytest.skip("the kernels were built without the headers of FlatBuffers")
    seeds = ["--seeds", "linear", "kept rings", "--cases", "30", "--verify"]
    command = [sys.executable, str(CAMPAIGN), str(tmp_path), *seeds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'same'" in done.stdout
    assert "'refused'" in done.stdout


@pytest.fixture
def linear(tmp_path):
    from libkvc_models import kind_bundle

    return kind_bundle("linear", tmp_path / "model.kvc")


def bounds_of(path):
    raw = path.read_bytes()
    return decode(raw[int.from_bytes(raw[24:32], "little") :], "bundle").bounds


def refused(path, match):
    with pytest.raises(BadProgram, match=match), load(path) as program:
        program.session().call("prefill", np.array([[1, 2, 3]]))


def test_an_input_of_another_shape_is_refused(linear, tmp_path):
    bounds = bounds_of(linear)
    for number, one in enumerate(bounds.lists):
        outputs = one.columns["inputs"][: len(one.columns["outputs"])]
        bounds = changed_list(bounds, number, outputs=outputs)
    changed = resealed(linear, bounds, tmp_path / "changed.kvc")
    refused(changed, "outputs of another shape")


def test_a_kernel_that_is_missing_is_refused(linear, tmp_path):
    for name in ("no kernel", "call", "ask"):
        bounds = bounds_of(linear)
        kernels = (name, *bounds.kernels[1:])
        other = replace(bounds, kernels=kernels)
        refused(resealed(linear, other, tmp_path / "changed.kvc"), "there is no kernel")
