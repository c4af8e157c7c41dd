"""Files of the benchmark of formats: each holds the same scan, with positions and probe in files beside it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("formats")


def test_one_scan_in_all_formats(formats: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = formats.ROWS
    counts = rng.poisson(9, (rows * rows, 64, 64)).astype(np.uint8)
    places = np.stack(np.divmod(np.arange(rows * rows), rows), axis=1) * 5e-8 + rng.normal(0, 1e-9, (rows * rows, 2))
    probe = rng.normal(size=(1, 64, 64)) + 1j * rng.normal(size=(1, 64, 64))
    scan = formats.Scan(counts, places, 8e3, 1e-8, 5e-8, probe)
    for name, make in formats.FORMATS.items():
        folder = tmp_path / name
        folder.mkdir()
        m = formats.load(*make(folder, scan))
        found = np.fft.fftshift(m.patterns.read(np.arange(m.views)), axes=(1, 2))
        np.testing.assert_array_equal(found, counts, err_msg=name)
        np.testing.assert_allclose((m.positions - m.positions[0]) * 1e-8, places - places[0], atol=1e-15, err_msg=name)
        assert (m.probe is None) == (name == "empad"), name
        assert m.geometry.object_pixel_m == pytest.approx((1e-8, 1e-8)), name
