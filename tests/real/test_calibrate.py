"""The cryo-electron scan, calibrated from energy, semi-angle and step alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptymesh.calibrate import calibrate


@pytest.mark.long
def test_cryo_scan(data_dir: Path) -> None:
    """Its transposition and the sign of its defocus are known by the beads, its rotation by reconstructions.

    These end lower at -120 degrees than at the -126 of the example, which `ptymesh orient` holds for known within 10.
    """
    found = calibrate(
        {
            "data": {"path": str(data_dir / "cryo-4dstem-40x40.h5"), "energy_eV": 300e3},
            "positions": {"raster": {"step_m": 31.25e-10}},
            "probe": {"start": {"kind": "electron", "semiangle_rad": 1.03e-3}},
        }
    )
    assert found.parallax.is_sure and found.lens.transpose and "bright" in found.settled
    assert found.lens.rotation_deg == pytest.approx(-120.4, abs=2)
    assert found.lens.c10_m == pytest.approx(-13e-6, rel=0.06)
    assert found.pixel_m == pytest.approx((4.65e-10, 4.65e-10), rel=0.03)
    assert found.descan.wander_px < 0.5
    assert found.counts_per_view == pytest.approx(92e3, rel=0.01)
