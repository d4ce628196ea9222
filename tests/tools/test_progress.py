import io
import re
import sys

from rich.console import Console

from kvc.tools import progress


def shown(monkeypatch, *, terminal, fail=False, width=100):
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=terminal, width=width, color_system=None
    )
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    try:
        with progress.Stages(quiet=False) as stages:
            stages.show("capture", 0, 2, "prefill")
            stages.show("capture", 1, 2, "decode")
            stages._progress.refresh()
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
    assert "plan  model.layers.17.self_attn.q_proj.weight" in text


def test_all_fits_into_80_columns(monkeypatch):
    long = "model.language_model.layers.17.self_attn.q_proj.weight"
    assert len(progress._described("write weights", long)) == 46
    assert progress._described("write weights", long).endswith(
        "self_attn.q_proj.weight"
    )
    lines = shown(monkeypatch, terminal=True, width=80).splitlines()
    assert any("capture  decode" in line and "0:00:0" in line for line in lines)


def test_a_terminal_is_drawn_while_stderr_is_another(monkeypatch):
    text = io.StringIO()
    text.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", text)
    with progress.Stages(quiet=False) as stages:
        stages.show("capture", 0, 1, "prefill")
        sys.stderr = io.StringIO()  # as tracing does
        stages._progress.refresh()
        assert sys.stderr.getvalue() == ""
    assert "capture  prefill" in text.getvalue()


def test_a_log_file_has_a_line_for_each_stage(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 100.0)
    shown(monkeypatch, terminal=False)
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\[ +0\.\d s\] ", "", line) for line in lines] == [
        "capture: prefill",
        "plan: model.layers.17.self_attn.q_proj.weight",
    ]


def test_a_log_file_has_what_is_worked_on_after_a_while(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.0)
    shown(monkeypatch, terminal=False)
    assert "capture: decode" in capsys.readouterr().err


def test_a_quiet_command_says_nothing(capsys):
    with progress.Stages(quiet=True) as stages:
        stages.show("capture", 0, 2, "prefill")
    assert capsys.readouterr().err == ""
