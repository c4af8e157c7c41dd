"""When it pays that a batch's windows wait until they are all there (object_sums.py): what planning asks, too, which
must not need the compiler of the kernels that do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptymesh.estimate import BLOCK

if TYPE_CHECKING:
    import torch

#: Bytes of windows and light that wait, at most.
WAITING_BYTES = 64 << 20
#: They wait where as many as these share a pixel of the touched blocks on average, at most. Measured: of a batch whose
#: windows lie close together, sums stay in the cache, and windows do not.
OVERLAP = 8


def pays(pixels: int, dtype: torch.dtype, each: bool, blocks: int) -> bool:
    """Return True if windows of so many pixels together, over so many blocks, should wait; each: with a light each."""
    if pixels * (dtype.itemsize + each * dtype.to_real().itemsize) > WAITING_BYTES:
        return False
    return pixels <= OVERLAP * blocks * BLOCK**2
