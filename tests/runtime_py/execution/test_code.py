import subprocess
import sys

import torch

from kvc.runtime.execution.code import import_beside_packing

ALONE = """
import sys, threading
from kvc.runtime.execution.delegate import (Handle)
from kvc.runtime.execution.code import (import_beside_packing)
from kvc.schema.errors import (Closed)

packed = []

class Plain(Handle):
    pass

class Packs:
    def pack(self):
        packed.append(threading.current_thread() is threading.main_thread())

class Fails:
    def pack(self):
        raise Closed(kind="program")

handles = [Plain(), Packs(), Fails(), Packs()]
import_beside_packing(range(4), handles.__getitem__)
assert packed == [True], packed
assert "kvc.runtime.kernels.fused" in sys.modules
assert threading.active_count() == 1
"""


def test_it_packs_until_something_fails_and_torch_is_there_then():
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=300)


def test_where_torch_is_imported_nothing_is_packed_ahead():
    assert torch is sys.modules["torch"]
    import_beside_packing([0], lambda _: 1 / 0)
