"""Simulated measurements with known truth: phantoms, scans, noise, imperfections."""

from ptymesh.simulate.simulation import (
    Simulated,
    Simulation,
    Truth,
    checked,
    patterns,
    simulate,
    simulate_scans,
    truth,
    truths,
)

__all__ = ["Simulated", "Simulation", "Truth", "checked", "patterns", "simulate", "simulate_scans", "truth", "truths"]
