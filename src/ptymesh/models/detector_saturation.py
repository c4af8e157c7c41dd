"""Saturation: a detector that counts no further from some counts on.

s       these counts, after dark and gain, in one pixel
I, y    modelled intensity with its background; counts

    pixels with y >= s    loss of min(I, y): an intensity above y explains the counts, one below does not
    all others            loss of I, as without saturation

That is least squares, or the likelihood, of counts of which only a lower bound is known. With `everywhere` all pixels
have the loss of min(I, s), as in CDTools: its derivative is 0 where the model is too bright, also in pixels that are
not saturated, and so nothing darkens them.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.fidelity import Saturation


class DetectorSaturation(DetectorPiece):
    """Counts from which on a pixel counts no further, so that they are only a lower bound of the intensity.

    The limit is that of intensities with their background, where they are held against counts.
    """

    name: ClassVar[str] = "detector_saturation"

    level: float = Field(
        gt=0, description="counts of a saturated pixel, after dark and gain; those that are higher are saturated, too"
    )
    everywhere: bool = Field(
        False,
        description="limit the intensities of all pixels, as CDTools does, not only of those that are saturated; "
        "pixels that the model makes too bright are not darkened then",
    )

    @property
    def saturation(self) -> Saturation:
        """The level, and where it limits intensities."""
        return Saturation(self.level, self.everywhere)
