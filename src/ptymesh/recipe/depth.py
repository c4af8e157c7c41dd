"""Slices of an initial object for another number of slices, or another thickness.

L', L       slices that there are, slices that are asked for
W_ll'       share of slice l' that lies in slice l (L, L')
O, V        transmission, potential

A slice stands for a slab of material, whose phase and absorption are spread evenly over its thickness:

    O_l = prod_l' O_l'^W_ll',   V_l = sum_l' W_ll' V_l'

Powers are those of |O| and of the phase between -pi and pi. Slabs beyond what there is are vacuum.
"""

from __future__ import annotations

import numpy as np


def depth_shares(old_count: int, new_count: int) -> np.ndarray:
    """Return the shares W (L, L') for slices over which the same whole thickness is spread."""
    return slab_shares(old_count, new_count, 1 / old_count, 1 / new_count, 0.0)


def slab_shares(old_count: int, new_count: int, old_thickness: float, new_thickness: float, depth: float) -> np.ndarray:
    """Return the shares W (L, L') for slabs of given thicknesses.

    Args:
        old_count: L'.
        new_count: L.
        old_thickness: of each slab that there is.
        new_thickness: of each slab that is asked for, in the same unit.
        depth: of the surface of those that there are below the surface of those that are asked for, along the beam.
    """
    old_edges = depth + old_thickness * np.arange(old_count + 1)
    new_edges = new_thickness * np.arange(new_count + 1)
    low, high = (
        np.maximum(old_edges[None, :-1], new_edges[:-1, None]),
        np.minimum(old_edges[None, 1:], new_edges[1:, None]),
    )
    shares: np.ndarray = np.clip(high - low, 0, None) / old_thickness
    # what rounding leaves of slabs that only touch, or lie inside, would be spread over all pixels
    return np.where(shares < 1e-9, 0.0, np.where(shares > 1 - 1e-9, 1.0, shares))


def transmission_by_shares(obj: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return prod_l' O_l'^W_ll'.

    Args:
        obj: (L', H, W) complex.
        shares: (L, L').

    Returns:
        (L, H, W) complex.
    """
    if np.array_equal(shares, np.eye(len(obj))):
        return obj
    product = np.ones((len(shares), *obj.shape[1:]), np.result_type(obj, np.complex64))
    for index, row in enumerate(shares):
        for share, plane in zip(row, obj, strict=True):
            if share == 1:
                product[index] *= plane
            elif share:
                product[index] *= np.abs(plane) ** share * np.exp(1j * share * np.angle(plane))
    return product


def potential_by_shares(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return sum_l' W_ll' V_l'.

    Args:
        values: (L', H, W) real.
        shares: (L, L').

    Returns:
        (L, H, W) real.
    """
    if np.array_equal(shares, np.eye(len(values))):
        return values
    return np.tensordot(shares, values, axes=1).astype(values.dtype)
