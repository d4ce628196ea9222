"""Two small models of other people; the benchmark tries all that it knows."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "model_zoo.py"
MODELS = ("classification/squeezenet1_1", "timm/lcnet_035")


@pytest.mark.skipif(
    not (find_spec("torchvision") and find_spec("timm")),
    reason="the models are of torchvision and timm, which are not both installed",
)
def test_models_of_torchvision_and_timm_equal_eager():
    names = [model.split("/")[1] for model in MODELS]
    command = [sys.executable, str(SCRIPT), *names]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    for model in MODELS:
        assert f"right {model} " in done.stdout
