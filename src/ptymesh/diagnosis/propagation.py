"""Distances along the beam: to the detector, and between the beam's focus and the sample.

I       modelled intensities (B, h, w), z distance
q       frequency in the probe, cycles per pixel
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Relative step of the distance over which intensities are differentiated.
STEP = 0.02
#: The object has adapted to the wrong distance: the first step falls short of the error, by about so much.
FURTHER = 5
#: Phase (rad, root mean square over the probe's frequencies) of the defocus over which intensities are differentiated.
DEFOCUS_STEP = 0.05


def find_wrong_distance(view: ResultView) -> Evidence | None:
    """Return the relative change of the near-field distance that one Gauss-Newton step asks for."""
    assert view.scan is not None
    geometry = view.scan.geometry
    if geometry.propagation == "far_field" or geometry.distance_m is None:
        return None
    roots = [
        np.sqrt(view.model(view.result, replace(geometry, distance_m=geometry.distance_m * (1 + sign * STEP))))
        for sign in (1, -1)
    ]
    slope = (roots[0] - roots[1]) / (2 * STEP)
    step = float((slope * view.misfit).sum() / max((slope**2).sum(), 1e-30))
    way = "longer" if step > 0 else "shorter"
    sentence = f"the patterns ask for a {way} distance, in a first step by {100 * abs(step):.2g} %"
    tried_distance_m = float(f"{geometry.distance_m * (1 + FURTHER * step):.4g}")
    return Evidence(abs(step), sentence, (Remedy({"data.distance_m": tried_distance_m}, advice="and try others"),))


def defocus_asked(view: ResultView) -> np.ndarray:
    """Return the defocus that each view asks of the refined probe, (B,), in rad root mean square over its frequencies.

    One Gauss-Newton step of sum (sqrt I - sqrt y)^2 along it, the object standing still.
    """
    wave = np.fft.fft2(view.result.probe.astype(np.complex128))
    square = sum(
        np.fft.fftfreq(n).reshape(shape) ** 2 for n, shape in zip(wave.shape[-2:], ((-1, 1), (1, -1)), strict=True)
    )
    power = (np.abs(wave) ** 2).sum(axis=0)
    phase = square - (square * power).sum() / power.sum()
    phase = phase / max(float(np.sqrt((phase**2 * power).sum() / power.sum())), 1e-30)
    roots = []
    for step in (DEFOCUS_STEP, -DEFOCUS_STEP):
        probe = np.fft.ifft2(wave * np.exp(1j * step * phase)).astype(view.result.probe.dtype)
        roots.append(np.sqrt(view.model(replace(view.result, probe=probe))))
    slope = (roots[0] - roots[1]) / (2 * DEFOCUS_STEP)
    steps = (slope * view.misfit).sum(axis=(1, 2)) / np.maximum((slope**2).sum(axis=(1, 2)), 1e-30)
    return np.asarray(steps)
