"""Figures are the same, and matplotlib says nothing, whatever fonts there are and whatever it has listed of them."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

from ptymesh import plot


def drawn() -> bytes:
    """The bytes of a figure with text, numbers, powers of ten and letters that are not ASCII."""
    figure = plot.history_figure({"residual": 0.5 ** np.arange(1, 9.0)}, title="µ π √")
    figure.axes[0].set_xscale("log")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=50, metadata={"Software": None})
    assert {text.get_fontname() for text in figure.findobj(Text)} == {"DejaVu Sans"}
    return stream.getvalue()


def test_fonts_that_are_gone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A list that names fonts which are not there, and none that is."""
    before = drawn()
    known = next(font for font in fontManager.ttflist if font.name == "DejaVu Sans")
    gone = [replace(known, name=name, fname=f"/nowhere/{name}.ttf") for name in ("DejaVu Sans", "Arial")]
    monkeypatch.setattr(fontManager, "ttflist", gone)
    monkeypatch.setitem(matplotlib.rcParams, "font.family", ["Arial", "Not There"])
    with caplog.at_level(logging.INFO):
        assert drawn() == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert matplotlib.rcParams["font.family"] == ["Arial", "Not There"], "the user's own is as it was"


def test_the_command_line_is_silent_where_matplotlib_makes_its_list(tmp_path: Path) -> None:
    """Without a folder to keep it in, matplotlib says so at length each time that it is imported."""
    code = (
        "import sys; sys.argv = ['ptymesh', 'view', 'nothing.h5']\n"
        "from ptymesh.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    assert left.code == 2\n"
        "import matplotlib.font_manager"
    )
    (tmp_path / "file").write_text("")
    environment = {"PATH": "", "HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1 and "nothing.h5" in done.stderr
