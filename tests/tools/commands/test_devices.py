import json

import pytest
import vulkan_here

from kvc.runtime.delegates import table
from kvc.runtime.delegates.vulkan import backend
from kvc.runtime.execution.delegate import FoundDevice
from kvc.schema.errors import KvcError, MissingLibrary, NativeCallFailed


def test_devices_of_this_machine_are_listed(kvc):
    here = vulkan_here.device().found
    name = f"vulkan:{here.number}"
    lines = kvc("devices").stdout.splitlines()
    assert any(line.startswith(name) and here.name in line for line in lines)
    told = json.loads(kvc("devices", "--json").stdout)["devices"]
    assert name in [each["device"] for each in told]


@pytest.mark.parametrize(
    "reason",
    [
        MissingLibrary(library="Vulkan", reason="gone", install="apt"),
        NativeCallFailed(library="Vulkan", what="vkCreateInstance", reason="gone"),
    ],
)
def test_why_there_are_none_is_said(
    kvc, monkeypatch: pytest.MonkeyPatch, reason: KvcError
):
    def refuse() -> None:
        raise reason

    monkeypatch.setattr(backend.Vulkan, "devices", staticmethod(refuse))
    assert dict(table.find_devices())["vulkan"] is reason
    assert f"none: {reason}" in kvc("devices").stdout


def test_backends_without_devices_are_not_listed(monkeypatch: pytest.MonkeyPatch):
    found = [FoundDevice("vulkan:0", "one", "")]
    monkeypatch.setattr(backend.Vulkan, "devices", staticmethod(lambda: found))
    listed = dict(table.find_devices())
    assert listed["vulkan"] == found
    assert listed.keys() == {"qnn", "vulkan"}
