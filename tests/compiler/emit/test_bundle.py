import threading
from pathlib import Path

import pytest
import torch
from small_models import IndexCopyCache
from torch import nn

from kvc.compiler import Bundle, Dim, Method, compile_program
from kvc.schema.errors import CannotWrite, CompileError


class Twins(nn.Module):
    """Two weights of equal bytes under two names, and a third of its own."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.arange(64.0))
        self.two = nn.Parameter(torch.arange(64.0))
        self.three = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x + self.one) * self.two + self.three.sum()


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_program(Twins(), [Method("forward", args=(torch.ones(64),))])


def test_equal_bytes_of_two_names_are_stored_once(bundle: Bundle, tmp_path: Path):
    report = bundle.save(tmp_path / "model.kvc")
    assert (report.names, report.blobs) == (3, 2)
    assert (report.blob_nbytes, report.named_nbytes) == (256 + 16, 512 + 16)
    assert report.file_nbytes == (tmp_path / "model.kvc").stat().st_size


def test_the_models_own_bytes_are_counted(bundle: Bundle):
    assert bundle.model_nbytes == 512 + 16


def test_saving_twice_gives_equal_bytes(bundle: Bundle, tmp_path: Path):
    bundle.save(tmp_path / "a.kvc")
    bundle.save(tmp_path / "b.kvc")
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def test_torch_keeps_its_threads(bundle: Bundle, tmp_path: Path):
    before, told = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        bundle.save(tmp_path / "a.kvc", lambda *_: told.append(torch.get_num_threads()))
        assert (set(told), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_torch_keeps_its_threads_when_two_bundles_are_saved(
    bundle: Bundle, tmp_path: Path
):
    """The second save begins within the first one, and ends after it."""
    before, seen = torch.get_num_threads(), []
    inside, first_done = threading.Event(), threading.Event()

    def second_told(*_: object) -> None:
        inside.set()
        assert first_done.wait(30)

    def first_told(*_: object) -> None:
        if not inside.is_set():
            second.start()
            assert inside.wait(30)

    second = threading.Thread(target=bundle.save, args=(tmp_path / "b", second_told))
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        bundle.save(tmp_path / "a", first_told)
        first_done.set()
        second.join(30)
        later.start()
        later.join(30)
        assert (seen, torch.get_num_threads()) == ([2], 2)
    finally:
        torch.set_num_threads(before)


def test_progress_is_told_for_every_name(bundle: Bundle, tmp_path: Path):
    told = []
    bundle.save(tmp_path / "a.kvc", lambda *step: told.append(step))
    names = [named.name for named in bundle.program.names]
    sizes = [named.type.nbytes({}) for named in bundle.program.names]
    assert len(told) == len(names) == 3
    for number, (stage, done, total, name) in enumerate(told):
        assert (stage, name) == ("write weights", names[number])
        assert (done, total) == (sum(sizes[:number]), sum(sizes))


def test_a_missing_folder_is_refused(bundle: Bundle, tmp_path: Path):
    with pytest.raises(CannotWrite, match=r"cannot write .*none.*model.kvc"):
        bundle.save(tmp_path / "none" / "model.kvc")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(
    bundle: Bundle, tmp_path: Path
):
    path = tmp_path / "model.kvc"
    path.write_bytes(b"old")

    last = bundle.program.names[-1].name

    def interrupt(stage: str, done: int, total: int, item: str = "") -> None:
        if item == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bundle.save(path, interrupt)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_replaces_what_was_there(bundle: Bundle, tmp_path: Path):
    path = tmp_path / "model.kvc"
    path.write_bytes(b"old")
    bundle.save(path)
    assert path.read_bytes() != b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_strided_weight_is_stored_in_order(tmp_path: Path):
    from kvc.runtime import load

    model = IndexCopyCache()
    model.scale = nn.Parameter(torch.arange(8.0)[::2])
    args = (torch.ones(1, 1, 4), torch.tensor([0]))
    compile_program(model, [Method("decode", args=args)]).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program, program.session() as session:
        rows = session.decode(*args)
    assert rows[0, 0].tolist() == [0.0, 4.0, 8.0, 12.0]


def test_what_is_larger_than_kvc_allows_is_no_bug(tmp_path: Path):
    rows = {"input": {0: Dim("rows", 1, 2**31 - 1)}}
    method = Method("forward", args=(torch.ones(2, 4096),), dynamic=rows)
    bundle = compile_program(torch.nn.Tanh(), [method])
    with pytest.raises(
        CompileError, match=r"too large: .*; lower the bounds"
    ) as caught:
        bundle.save(tmp_path / "large.kvc")
    assert "bug" not in str(caught.value)
