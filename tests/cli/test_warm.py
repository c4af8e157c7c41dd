"""ptymesh warm: what it says of kernels that are there, that it compiles, and that cannot be kept."""

from __future__ import annotations

import sys

import pytest
import torch

from ptymesh.cli.main import main
from ptymesh.kernels.cpu import compiling, ready


def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "warm", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfd.readouterr()
    return int(left.value.code or 0), out, err


def test_it_says_what_it_did(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ready, "make_ready", lambda dtype: dtype == torch.complex128)
    status, out, err = call(monkeypatch, capfd)
    assert (status, err) == (0, "")
    assert out == "Kernels for single precision: there already\nKernels for double precision: compiled in 0 s\n"
    assert call(monkeypatch, capfd, "--precision", "single")[1] == "Kernels for single precision: there already\n"


def test_without_a_place_to_keep_them(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compiling, "places", set)
    status, out, err = call(monkeypatch, capfd)
    assert (status, out) == (2, "") and "set NUMBA_CACHE_DIR to one that can be written to" in err
