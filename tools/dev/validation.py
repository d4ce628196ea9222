"""Run tests of the backend `vulkan` under Khronos' validation layer; any message fails.

    python tools/dev/validation.py [pytest's arguments]

It needs the layer (Debian: vulkan-validationlayers). Without arguments all tests of the
backend run, which takes some minutes on lavapipe. The layer watches each call of the
library, but not what shaders do at addresses.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

LAYER = "VK_LAYER_KHRONOS_validation"
TESTS = ("tests/runtime_py/delegates/vulkan", "tests/end_to_end/test_vulkan.py")
SETTINGS = """\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf
khronos_validation.log_filename = stdout
khronos_validation.duplicate_message_limit = 1
"""
MARK = "Validation "  # "Validation Error: [ VUID-... ]", "Validation Warning: ..."
# A wrong call that the layer must report: without a report the layer is not active.
WRONG = """
from kvc.runtime.delegates.vulkan import structs
from kvc.runtime.delegates.vulkan.device import open_device
open_device().make("vkCreateBuffer", structs.BufferCreateInfo(size=0, usage=1))
"""


def environment(folder: Path) -> dict[str, str]:
    settings = folder / "vk_layer_settings.txt"
    settings.write_text(SETTINGS)
    return os.environ | {
        "KVC_REQUIRE_VULKAN": "1",
        "VK_INSTANCE_LAYERS": LAYER,
        "VK_LAYER_SETTINGS_PATH": str(settings),
    }


def messages(text: str) -> Counter[str]:
    """Return how often the layer printed each message, by the message's beginning."""
    found = (line.partition(MARK)[2] for line in text.splitlines() if MARK in line)
    return Counter(line[:300] for line in found)


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        where = environment(Path(folder))
        command = [sys.executable, "-c", WRONG]
        wrong = subprocess.run(
            command, env=where, capture_output=True, text=True, check=False
        )
        if not messages(wrong.stdout):
            print("the layer is not here: apt install vulkan-validationlayers")
            return 2
        chosen = arguments or [*TESTS, "-q"]
        log = Path(folder) / "log"
        with log.open("w") as file:
            tests = subprocess.run(
                [sys.executable, "-m", "pytest", "-s", *chosen],
                env=where,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        text = log.read_text(errors="replace")
    found = messages(text)
    print("\n".join(text.splitlines()[-3:]))
    for message, count in found.most_common():
        print(f"{count} x {message}")
    print(f"{sum(found.values())} messages of the layer")
    return 1 if found else tests.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
