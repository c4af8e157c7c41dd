"""How arrays are laid out for kernels, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest

from ptymesh.kernels.cpu import panels


@pytest.mark.parametrize(("h", "w"), [(8, 8), (8, 16), (9, 10), (12, 15)])
def test_every_pixel_is_where_kernels_look_for_it(h: int, w: int) -> None:
    """Column x of row y: panel x // 8, row y, place x % 8; of waves real parts first, then imaginary ones."""
    whole = w + -w % 8
    waves = np.random.default_rng(1).normal(size=(2, h, w, 2)).astype(np.float32).view(np.complex64)[..., 0]
    plane, laid_out = panels.in_panels(waves[0].real), panels.waves_in_panels(waves)
    assert len(plane) == h * whole and len(laid_out) == 2 * h * whole * 2
    for y in range(h):
        for x in range(w):
            at = (x // 8) * h + y
            assert plane[at * 8 + x % 8] == waves[0, y, x].real
            for mode in range(2):
                eight = mode * h * whole * 2 + at * 16 + x % 8
                assert laid_out[eight] + 1j * laid_out[eight + 8] == waves[mode, y, x]
    assert np.count_nonzero(plane) == h * w and np.count_nonzero(laid_out) == 4 * h * w
    assert (panels.from_panels(plane[None], h, w)[0] == waves[0].real).all()


def test_what_is_laid_out_is_a_copy() -> None:
    """A plane of a single panel lies in memory as it is laid out."""
    plane = np.ones((8, 8))
    laid_out = panels.in_panels(plane)
    plane[0, 0] = 2
    assert laid_out[0] == 1
