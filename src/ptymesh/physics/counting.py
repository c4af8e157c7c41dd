"""What counting alone leaves of a misfit: the noise floor of a residual.

y       counts, Poisson of mean I

f(I) = E (sqrt y - sqrt I)^2 is 1/4 for bright pixels and 2 I for dark ones. The intensities are not known, the counts
are: g(y) below has, over the counts of a pixel, the mean f(I) to 10 % for any I and to 2 % over most patterns (an
unbiased g does not exist, as f has a root in it).
"""

from __future__ import annotations

import torch
from torch import Tensor

#: g of 0 to 6 counts, by least squares of sum_y p(y; I) g(y) / f(I) - 1 over I from 0.001 to 60.
FEW = (0.0, 1.757, -2.450, 4.475, -2.753, 0.712, 0.648)


def expected_misfit(y: Tensor) -> Tensor:
    """g of whole counts (...), of the dtype of y: its sum over sum y estimates the residual of the true intensities."""
    table = torch.tensor(FEW, dtype=y.dtype, device=y.device)
    few = table[y.clamp(0, len(FEW) - 1).to(torch.int64)]
    return torch.where(y < len(FEW), few, 0.25 + 7 / 64 / y.clamp(min=1))
