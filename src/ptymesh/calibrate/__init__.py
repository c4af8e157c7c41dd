"""Numbers of an electron microscope taken from its patterns: disc, orientation, defocus, dose (`ptymesh calibrate`)."""

from __future__ import annotations

from ptymesh.calibrate.calibration import Calibration
from ptymesh.calibrate.measuring import calibrate

__all__ = ["Calibration", "calibrate"]
