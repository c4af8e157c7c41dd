"""Orientation of a detector to its scan, found from the patterns' centres of mass alone.

c       centre of mass of a pattern (N, 2): the mean slope of the exit wave's phase there
p       positions (N, 2)
R       rotation of the scan by theta, as `positions.rotation_deg` has it

Slopes are a gradient: c = grad f(p) for some f, whatever the object, if the beam is about round. Patterns that are
turned by a quarter, transposed or reversed along one axis break this; so does a scan that lies turned to the detector,
whose R^T c is the gradient. A half turn does not, and cannot be told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Matrices from (y, x) of the detector to that of the scan, by what a recipe says; each stands for its half turn, too.
TURNS = {
    "as told": ((1, 0), (0, 1)),
    "transpose: true": ((0, 1), (1, 0)),
    "flip_y: true": ((-1, 0), (0, 1)),
    "flip_y: true, transpose: true": ((0, -1), (1, 0)),
}
#: Largest number of waves of f along either axis; with n views there are at most sqrt(n / 2).
WAVES = 12


@dataclass(frozen=True)
class Rotation:
    """The orientation that suits best, modulo a half turn.

    Attributes:
        transpose: whether the detector is transposed.
        angle_deg: rotation of the scan, between -90 and 90 degrees.
        left: share of the variance of c that is then no gradient.
        told: the same share with the orientation that the recipe has.
    """

    transpose: bool
    angle_deg: float
    left: float
    told: float


def unexplained(c: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Return the share of the variance of c (N, 2) that is no gradient at positions p (N, 2), by orientation."""
    basis = _gradients(p)
    shares = {}
    for name, turn in TURNS.items():
        target = _rest(basis, c @ np.array(turn, float).T)
        shares[name] = float((target**2).sum() / max((c**2).sum(), 1e-30))
    return shares


def rotation(c: np.ndarray, p: np.ndarray) -> Rotation:
    """Return the best of all angles, with the detector transposed or not, for c (N, 2) at positions p (N, 2).

    The part of cos(theta) c + sin(theta) J c, J c = (x, -y), that is no gradient has a power that is a quadratic form
    of cos and sin; its smallest eigenvalue is the least of it.
    """
    basis, power = _gradients(p), max(float((c**2).sum()), 1e-30)
    rotations, share_as_told = [], 1.0
    for transpose in (False, True):
        centres = c[:, ::-1] if transpose else c
        a, b = _rest(basis, centres), _rest(basis, np.stack([centres[:, 1], -centres[:, 0]], axis=1))
        form = np.array([[(a * a).sum(), (a * b).sum()], [(a * b).sum(), (b * b).sum()]]) / power
        values, vectors = np.linalg.eigh(form)
        cosine, sine = vectors[:, 0]
        angle = float(np.rad2deg(np.arctan2(sine, cosine)))
        rotations.append(Rotation(transpose, (angle + 90) % 180 - 90, float(values[0]), 0.0))
        if not transpose:
            share_as_told = float(form[0, 0])
    best = min(rotations, key=lambda one: one.left)
    return Rotation(best.transpose, best.angle_deg, best.left, share_as_told)


def _rest(basis: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return c (N, 2), flattened, without the part that is a gradient."""
    target = c.T.reshape(-1)
    return np.asarray(target - basis @ (basis.T @ target))


def _gradients(p: np.ndarray) -> np.ndarray:
    """Return orthonormal gradients (2 N, n) of smooth f at positions p (N, 2)."""
    p = p - p.min(axis=0)
    side = max(float(p.max()), 1e-9)
    waves = int(min(WAVES, np.sqrt(len(p) / 2)))
    basis = []
    for a in range(waves + 1):
        for b in range(waves + 1):
            if a or b:
                ky, kx = np.pi * a / (1.1 * side), np.pi * b / (1.1 * side)
                sy, cy, sx, cx = np.sin(ky * p[:, 0]), np.cos(ky * p[:, 0]), np.sin(kx * p[:, 1]), np.cos(kx * p[:, 1])
                basis.append(np.concatenate([-ky * sy * cx, -kx * cy * sx]))  # of cos cos, of even boundary
    basis += [np.repeat(np.eye(2)[axis], len(p)) for axis in range(2)]  # of y and x
    for power in (p[:, 0], p[:, 1]):
        basis.append(np.concatenate([power * (power is p[:, 0]), power * (power is p[:, 1])]))
    design = np.stack(basis, axis=1)
    design /= np.linalg.norm(design, axis=0) + 1e-30
    left, strengths, _ = np.linalg.svd(design, full_matrices=False)
    return np.asarray(left[:, strengths > 1e-8 * strengths[0]])
