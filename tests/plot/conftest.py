"""A reconstruction as real ones are: a star, three modes, a jittered scan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ptymesh.compare import illumination


@dataclass(frozen=True)
class Example:
    """What the figures are drawn from; sizes in pixels."""

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    nominal_px: np.ndarray
    illumination: np.ndarray
    history: dict[str, np.ndarray]
    pixel_size_m: tuple[float, float] = (12e-9, 12e-9)


def star(size: int) -> np.ndarray:
    """A Siemens star of 36 spokes, 0 to 1."""
    y, x = np.indices((size, size)) - size / 2
    radius, angle = np.hypot(y, x), np.arctan2(y, x)
    return 0.5 * (1 + np.tanh(8 * np.sin(18 * angle))) * (radius < 0.45 * size) * (radius > 0.02 * size)


def build(size: int = 480, window: int = 128, views: int = 500, slices: int = 1) -> Example:
    """The star, `slices` times shifted, in a spiral scan."""
    rng = np.random.default_rng(0)
    layers = [np.roll(star(size), 7 * i, axis=1) for i in range(slices)]
    y, x = np.indices((size, size))
    noise = 1 + 0.02 * (rng.normal(size=(size, size)) + 1j * rng.normal(size=(size, size)))
    object_ = np.stack([(1 - 0.25 * s) * np.exp(-2.2j * s + 0.02j * x - 0.05j * y) * noise for s in layers])
    y, x = (np.indices((window, window)) - window // 2) / (window / 8)
    first = np.exp(-(x**2 + y**2) / 2 + 0.4j * (x**2 + y**2))
    probe = 30 * np.stack([first, 0.35 * x * first, 0.2 * (y + 0.3 * x) * first])
    turn = np.arange(views) * np.pi * (3 - np.sqrt(5))
    radius = 0.47 * (size - window) * np.sqrt((np.arange(views) + 0.5) / views)
    nominal = np.stack([np.sin(turn), np.cos(turn)], axis=1) * radius[:, None] + (size - window) / 2
    refined = nominal + 0.8 * np.sin(nominal[:, ::-1] / 40) + rng.normal(scale=0.1, size=nominal.shape)
    residual = np.concatenate([0.4 * np.arange(1, 21.0) ** -0.9, 0.02 * np.arange(1, 31.0) ** -0.15])
    history = {
        "epoch": np.arange(1, 51),
        "stage": np.array(["rpie"] * 20 + ["mpie"] * 30),
        "residual": residual * (1 + 0.01 * rng.normal(size=50)),
        "loss": 1e6 * residual,
        "seconds": np.full(50, 0.7),
    }
    light = illumination((size, size), probe, refined)
    return Example(object_.astype(np.complex64), probe.astype(np.complex64), refined, nominal, light, history)


@pytest.fixture(scope="session")
def example() -> Example:
    """Small, for speed."""
    return build(120, 32, 60)


@pytest.fixture(scope="session")
def stack() -> Example:
    """Five slices."""
    return build(96, 32, 40, slices=5)
