"""Qualcomm's library: two packages, and the architectures of the HTP.

Only the subprocess of `worker.py` imports the packages; this module does not.
"""

from typing import Final

from kvc.runtime.delegates.library_package import LibraryPackage

VERSIONS: Final = {"onnxruntime-qnn": "2.7.0", "onnxruntime": "1.32.0"}
QNN: Final = LibraryPackage("QNN of Qualcomm", "qnn", VERSIONS, linux_only=True)
# Tested architectures, the oldest first, as targets, each with a chip that has it.
ARCHITECTURES: Final = {
    "v68": "Snapdragon 888",
    "v69": "Snapdragon 8 Gen 1",
    "v73": "Snapdragon 8 Gen 2",
    "v75": "Snapdragon 8 Gen 3",
    "v79": "Snapdragon 8 Elite",
    "v81": "Snapdragon 8 Elite Gen 5",
}
USUAL: Final = "v75"
