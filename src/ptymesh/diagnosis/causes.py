"""The table of causes: everything that `ptymesh diagnose` looks for.

A new cause is a new row, and one function that returns its evidence (see evidence.py). Thresholds were chosen on
simulated scans (docs/how-to/diagnosis.md says which).
"""

from __future__ import annotations

import math

from ptymesh.diagnosis import (
    beam,
    blur,
    detector,
    estimate,
    frames,
    moves,
    order,
    orientation,
    propagation,
    sampling,
    shadows,
    twin,
)
from ptymesh.diagnosis.evidence import Cause
from ptymesh.verdict.judging import UNFINISHED, UNFINISHED_NAME
from ptymesh.verdict.signs import MOST_APART

CAUSES: tuple[Cause, ...] = (
    # --- detector ---
    Cause("saturation", "The detector saturates", detector.find_saturation, 2.0, weight=8.0, from_times=0),
    Cause("hot_pixels", "Hot pixels", detector.find_hot_pixels, 0.5, weight=2.0, from_times=1.02),
    Cause(
        "over_subtracted",
        "Too much is subtracted from the patterns",
        detector.find_over_subtraction,
        1.03,
        weight=30.0,
        mistaken_for=frozenset({"orientation", "geometry", "drift"}),
    ),
    Cause("border", "The beam hardly fits into its window", sampling.find_wide_beam, 0.38, weight=30.0),
    Cause("dead_region", "Part of the detector does not count", detector.find_dead_region, 2.5, weight=2.0),
    Cause("amplitudes", "The file holds amplitudes", detector.find_amplitudes, 0.9, weight=50.0, from_times=0),
    # --- views ---
    Cause("bad_frames", "Some frames are bad", frames.find_bad_frames, 0.5, weight=3.0),
    Cause(
        "two_beams",
        "Two beams in one scan",
        frames.find_two_beams,
        80.0,
        weight=10.0,
        from_times=math.inf,  # parts of a thick sample differ as much, in results that are good
        mistaken_for=frozenset({"geometry", "drift"}),
    ),
    Cause("astray", "Single views do not fit their positions", frames.find_astray_views, 0.5, weight=3.0),
    Cause(
        "descan",
        "Patterns wander over the detector",
        frames.find_descan,
        frames.WANDERS,
        weight=2.0,
        mistaken_for=frozenset({"orientation", "geometry", "drift"}),
    ),
    Cause("lag", "Positions lag the patterns", order.find_lag, 2.3, weight=4.0),
    Cause("serpentine", "Every second row runs the other way", order.find_serpentine, 4.0, weight=4.0),
    # --- beam ---
    Cause(
        "intensity",
        "The beam's intensity fluctuates",
        beam.find_intensity,
        0.02,
        weight=2.0,
        mistaken_for=frozenset({"geometry", "drift"}),  # brightness that changes with time pulls views along
    ),
    Cause("background", "An unknown background", beam.find_background, 0.006, weight=3.0),
    Cause("few_modes", "Partial coherence, blur, or too few modes", blur.find_lost_contrast, 0.003, weight=0.6),
    Cause("fly_scan", "The sample moved within each exposure", blur.find_fly_scan, 0.02, weight=1.5),
    # --- positions and orientation ---
    Cause(
        "twin",
        "The other one of two twins: half a turn, and the opposite lens",
        twin.find_twin,
        1.0,
        weight=6.0,
        mistaken_for=frozenset({"geometry", "drift"}),
        try_out=twin.try_twin,
    ),
    Cause("orientation", "Wrong orientation of the detector", orientation.find_orientation, 1.5, weight=4.0),
    Cause("geometry", "Wrong scale or rotation of the positions", moves.find_wrong_geometry, 5.6, weight=1.5),
    Cause("drift", "Drift", moves.find_drift, 0.08, weight=1.5),
    Cause("vibration", "Vibration, or inaccurate positions", moves.find_vibration, 0.08, weight=1.5),
    # --- propagation ---
    Cause("near_field", "A near field is taken for a far field", shadows.find_hidden_near_field, 1.0, weight=20.0),
    Cause("defocus_sign", "Defocus of the wrong sign", shadows.find_defocus_sign, 0.15, weight=3.0),
    Cause("few_slices", "The sample is thicker than one slice", blur.find_few_slices, 1.3, needs_trial=True),
    Cause("plane", "The probe is not that of the sample's plane", sampling.find_other_plane, 4.0, weight=10.0),
    Cause("distance", "Wrong propagation distance", propagation.find_wrong_distance, 0.001, weight=2.0, from_times=1.1),
    # --- the scan and the estimate ---
    Cause(
        UNFINISHED_NAME,
        "The iteration has not come to its end",
        estimate.find_unfinished,
        100 * UNFINISHED,
        needs_patterns=False,
        from_times=math.inf,
    ),
    Cause("overlap", "Too little overlap", sampling.find_little_overlap, MOST_APART, weight=3.0, needs_patterns=False),
    Cause(
        "raster",
        "Raster-grid pathology",
        sampling.find_raster,
        4.0,
        weight=2.0,
        needs_patterns=False,
        from_times=0,
    ),
    Cause(
        "confused",
        "Object and probe have exchanged a shift or a ramp",
        estimate.find_exchanged,
        1.0,
        needs_patterns=False,
        from_times=0,
    ),
    Cause("vortices", "Phase vortices in the object", estimate.find_vortices, 0.5, weight=1.2, needs_patterns=False),
    Cause("many_modes", "Too many modes", estimate.find_weak_modes, 1.5, needs_patterns=False, from_times=0),
    Cause(
        "over_fitting",
        "Over-fitting",
        estimate.find_over_fitting,
        1.0,
        weight=4.0,
        needs_patterns=False,
        from_times=0,
    ),
)
