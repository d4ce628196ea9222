import io

from rich.console import Console

from kvc.tools import progress


def shown(monkeypatch, *, terminal, fail=False):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    try:
        with progress.Stages(quiet=False) as stages:
            stages.show("capture", 0, 2)
            stages.show("capture", 1, 2)
            stages.show("plan", 0, 1, "model.layers.17.self_attn.q_proj.weight")
            if fail:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return text.getvalue()


def test_a_terminal_sees_each_stage_end(monkeypatch):
    lines = shown(monkeypatch, terminal=True).splitlines()
    ended = [line for line in lines if "✓ capture" in line][-1]
    assert "0:00:0" in ended
    assert "✓ plan" in lines[-1] or "✓ plan" in lines[-2]


def test_a_stage_that_was_interrupted_did_not_end(monkeypatch):
    text = shown(monkeypatch, terminal=True, fail=True)
    assert "✓ capture" in text
    assert "✓ plan" not in text
    assert "…yers.17.self_attn.q_proj.weight" in text


def test_a_log_file_sees_nothing(monkeypatch):
    assert shown(monkeypatch, terminal=False).strip() == ""
