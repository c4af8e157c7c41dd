"""Patterns beside their model, as one process hands them to another that draws them.

h, w    window pixels
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Patterns:
    """Measured patterns against the model.

    Fields:
        pairs: title of each -> measured and modelled counts, both (h, w).
        mask: (h, w) bool, True where the detector is good.
        far_field: whether DC is at the corner.
    """

    pairs: dict[str, tuple[np.ndarray, np.ndarray]]
    mask: np.ndarray
    far_field: bool

    def packed(self) -> bytes:
        """As an npz archive."""
        stream = io.BytesIO()
        pairs = np.array(list(self.pairs.values()))
        np.savez(stream, titles=np.array(list(self.pairs)), pairs=pairs, mask=self.mask, far_field=self.far_field)
        return stream.getvalue()

    @classmethod
    def unpacked(cls, archive: bytes) -> Patterns:
        """What `packed` has packed."""
        with np.load(io.BytesIO(archive), allow_pickle=False) as found:
            each = zip(found["titles"].tolist(), found["pairs"], strict=True)
            return cls({title: (pair[0], pair[1]) for title, pair in each}, found["mask"], bool(found["far_field"]))
