"""CG: preconditioned nonlinear conjugate gradient over object and probe together.

Polak & Ribiere, Rev. Fr. Inform. Rech. Oper. 16, 35 (1969), with beta >= 0 (Gilbert & Nocedal, SIAM J. Optim. 2, 21,
1992); for ptychography Thibault & Guizar-Sicairos, New J. Phys. 14, 063004 (2012).

s, z     negative gradient of the loss and the same preconditioned (descent.py);  ' marks those of the step before

    beta = max(0, <z, s - s'> / <z', s'>)
    d    = z + beta d'                    d = z if that is not downhill, or if the step before had other views
    (O, P) += t d                         t: least loss on a ladder of steps, refined by a parabola
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from ptymesh.engines.cost import EngineCost
from ptymesh.engines.descent import Descent, apply, dot
from ptymesh.estimate import Estimate
from ptymesh.problem import Batch, Problem


class CG(Descent):
    """Preconditioned nonlinear conjugate gradient; all views in every step unless `batch` is given.

    Directions are conjugate if the step before had the same views; batches that change follow the gradient.
    """

    name: ClassVar[str] = "cg"
    cost: ClassVar[EngineCost] = EngineCost(19.0, per_object_pixel=2.0, whole=True)
    with_optics: ClassVar[bool] = False

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Take one step of a line search along one conjugate direction. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        s, z = self.downhill(problem, estimate, batch)
        d, downhill = z, dot(problem, estimate, z, s)
        before, d_before = (self.recall(name, problem, estimate, z) for name in ("slope", "direction"))
        if before is not None and d_before is not None and self._same_views(batch):
            beta = ((downhill - dot(problem, estimate, z, before)) / self.state["downhill"]).clamp(min=0)
            if float(downhill + beta * dot(problem, estimate, d_before, s)) > 0:
                d = z.plus(d_before.times(beta))
        t = self.search(problem, estimate, batch, d)
        apply(problem, estimate, d.times(t))
        if float(t) == 0:  # no decrease along d: the next step starts from the gradient
            self.drop_moves("slope", "direction")
            return
        self.remember("slope", problem, estimate, s)
        self.remember("direction", problem, estimate, d)
        self.state["views"] = torch.as_tensor(batch.views)
        self.state["downhill"] = downhill.clamp(min=torch.finfo(torch.float64).tiny)

    def _same_views(self, batch: Batch) -> bool:
        return np.array_equal(self.state["views"].cpu().numpy(), batch.views)
