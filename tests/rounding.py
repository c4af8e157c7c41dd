"""Watch over what torch is asked for: nothing whose last bit depends on places or threads."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Forbidding(TorchDispatchMode):
    """Fails where torch is asked for what rounds by an element's place in its array, or by threads.

    Args:
        sums: False where all large sums are of terms that were rounded before, which are exact.
    """

    def __init__(self, *, sums: bool = True) -> None:
        super().__init__()
        self._sums = sums

    def __torch_dispatch__(self, asked: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = asked.__name__.partition(".")[0].rstrip("_")
        arrays = [a for a in args if isinstance(a, torch.Tensor) and a.numel() > 1]
        complexes = [a for a in arrays if a.is_complex()]
        power = args[1] if name == "pow" else None
        large = self._sums and name in ("sum", "mean") and args[0].numel() > 1 << 15
        assert not (
            (name in ("mul", "addcmul") and len(complexes) > 1)
            or (name == "div" and len(args) > 1 and isinstance(args[1], torch.Tensor) and args[1].is_complex())
            or (name in ("angle", "sgn", "lerp", "reciprocal") and complexes)
            or (name == "atan2" and arrays)
            or (name == "pow" and not (isinstance(power, int | float) and power in (-2, -1, 0, 0.5, 1, 2, 3)))
            or (name == "abs" and complexes and not args[0].is_contiguous())
            or (name in ("dot", "vdot", "mm", "bmm", "mv", "addmm") and args[0].numel() > 1000)
            or (large and asked(*args, **(kwargs or {})).numel() == 1)
        ), f"{asked} of {[tuple(a.shape) for a in arrays]} rounds by place or threads (ptymesh.physics.elementwise)"
        return asked(*args, **(kwargs or {}))
