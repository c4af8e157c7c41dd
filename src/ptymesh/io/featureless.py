"""Patterns that can be of no scan: without counts, without structure, or one and the same in all views.

What is reconstructed of them fits perfectly, and means nothing.
"""

from __future__ import annotations

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.measurement import Measurement

#: Views that are looked at, spread evenly over the scan.
SAMPLED = 16
REMEDY = "check which dataset is read (data.keys.patterns), and the mask"


def refuse_featureless(scan: Measurement) -> None:
    """Raise BadInput where the patterns of a sample of views hold nothing from which an object can be found."""
    views = np.unique(np.linspace(0, scan.views - 1, min(scan.views, SAMPLED)).round().astype(np.int64))
    counts = scan.patterns.read(views)[:, scan.mask]
    which = f"{'All' if len(views) == scan.views else 'The'} {len(views)} patterns"
    if len(views) < scan.views:
        which += f" that were looked at, of {scan.views},"
    if not (counts > 0).any():
        raise BadInput(f"{which} of {scan.name} have no counts on the detector's good pixels; {REMEDY}.")
    known = counts >= 0
    least = np.where(known, counts, counts.max()).min(axis=1)
    most = np.where(known, counts, counts.min()).max(axis=1)
    if counts.shape[1] > 1 and (least >= most).all():
        raise BadInput(f"{which} of {scan.name} have the same count on every pixel, as no diffraction has; {REMEDY}.")
    if len(views) > 1 and (counts == counts[:1]).all():
        raise BadInput(
            f"{which} of {scan.name} are one and the same, as those of no scan are, nor of counts; "
            "check which dataset is read (data.keys.patterns)."
        )
