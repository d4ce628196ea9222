"""The command that runs tests under Vulkan's validation layer."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "tools" / "dev" / "validation.py"
LAYERS = [
    Path(folder) / "vulkan/explicit_layer.d/VkLayer_khronos_validation.json"
    for folder in ("/usr/share", "/etc", "/usr/local/share")
]
WRONG = """
from kvc.runtime.delegates.vulkan import (structs)
from kvc.schema.errors import (KvcError)
import vulkan_here

def test_wrong():
    device = vulkan_here.device()
    try:
        device.make("vkCreateBuffer", structs.BufferCreateInfo(size=0, usage=1))
    except KvcError:
        pass
"""


def validate(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    if not any(layer.exists() for layer in LAYERS):
        pytest.skip("the layer is not here: apt install vulkan-validationlayers")
    import vulkan_here

    vulkan_here.device()
    command = [sys.executable, str(COMMAND), *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_right_program_is_silent():
    file = "tests/runtime_py/delegates/vulkan/test_device.py"
    done = validate(file, "-q", "-k", "runs_once_for_each")
    assert done.stdout.endswith("0 messages of the layer\n"), done.stdout
    assert done.returncode == 0


def test_a_wrong_call_is_told_and_fails(tmp_path: Path):
    path = tmp_path / "test_wrong.py"
    path.write_text(
        f"import sys\nsys.path.append({str(ROOT / 'tests/support')!r})\n{WRONG}"
    )
    done = validate(path, "-q")
    assert "1 messages of the layer" in done.stdout
    assert "VUID-VkBufferCreateInfo-size-00912" in done.stdout
    assert done.returncode == 1
