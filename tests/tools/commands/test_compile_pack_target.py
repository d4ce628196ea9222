"""`kvc compile --pack`: the file of a target, stored in the bundle."""

import pytest
from qnn_device import use_numpy_device

from kvc.runtime.delegates.coreml import backend
from kvc.runtime.delegates.coreml.backend import TARGET
from kvc.schema.container import BundleFile

pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")
MODEL = ("tiny_decoder:factory", "-q")


def formats(path):
    """Return the forms that names of a bundle have."""
    with BundleFile(path) as bundle:
        return {named.format for named in bundle.program.names}


@pytest.mark.parametrize("name", ["coreml", TARGET, f"coreml:{TARGET}"])
def test_a_target_is_named_as_for_export_or_without_the_backend(
    kvc, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(backend, "package_of", lambda *_: b"a package")
    path = tmp_path / "a.kvc"
    recipe = ("--recipe", "coreml_fp16")
    done = kvc("compile", *MODEL, *recipe, "-o", path, "--pack", name)
    assert done.exit_code == 0, done.output
    assert formats(path) == {"plain", f"coreml:{TARGET}"}


def test_one_of_several_targets_is_named(kvc, tmp_path, monkeypatch):
    use_numpy_device(monkeypatch)
    path = tmp_path / "a.kvc"
    packing = ("--recipe", "qnn_fp16", "-o", path, "--pack")
    for wrong in ("qnn", "v12", "cpu:v75"):
        done = kvc("compile", *MODEL, *packing, wrong)
        assert done.exit_code == 1
        assert f"cannot pack for {wrong!r}" in done.stderr
        assert "qnn:v68, qnn:v69" in done.stderr
        assert not path.exists()
    done = kvc("compile", *MODEL, *packing, "qnn:v75")
    assert done.exit_code == 0, done.output
    assert formats(path) == {"plain", "qnn:v75"}
