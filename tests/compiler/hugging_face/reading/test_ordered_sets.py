"""Models that go through a set of texts give the same bytes in every process."""

import os
import subprocess
import sys
from pathlib import Path

from hf_models import build
from transformers.models.gemma3 import modeling_gemma3

from kvc.compiler.hugging_face.reading.ordered_sets import in_order

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from hf_models import build
from kvc.compiler.hugging_face import export_hf
export_hf(build("gemma3_text")).save(sys.argv[2])
"""


def test_hash_seeds_give_equal_bytes(tmp_path):
    support, made = Path(__file__).parents[3] / "support", []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.kvc"
        command = [sys.executable, "-c", SCRIPT, str(support), str(out)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_sets_in_a_models_code_are_sets_in_order():
    model = build("gemma3_text")
    with in_order(model):
        own = modeling_gemma3.set
        texts = own(["b", "c", "a", "b"])
        assert list(texts) == ["a", "b", "c"]
        assert texts == {"a", "b", "c"}
        assert isinstance({1}, own)
        assert not isinstance([1], own)
        assert set(own([3, "a"])) == {3, "a"}
    assert "set" not in vars(modeling_gemma3)
