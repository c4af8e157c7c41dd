"""Limited-memory BFGS over object and probe together.

Nocedal & Wright, Numerical Optimization, 2nd ed. (2006), algorithms 7.4 (two loops) and 3.1 (backtracking)
Chen, Wang & Zhou, "Large-scale L-BFGS using MapReduce", NIPS 27 (2014): the loops in coefficients

x, g       unknowns, and gradient of the loss, both in the metric of the unknown's scale K (gradients/sweep.py): each x
           over sqrt(K), slope times sqrt(K); K as of the unknown's first move
s_i, y_i   differences of x and g over one accepted step, both ends on the same batch;  rho_i = 1 / <s_i, y_i>
m          number of such pairs that are remembered

    q <- g;   from the newest:  a_i = rho_i <s_i, q>,  q <- q - a_i y_i
    q <- (<s, y> / <y, y>) q of the newest pair
    from the oldest:  q <- q + s_i (a_i - rho_i <y_i, q>);   d = -q
    x <- x + t d,  t = 1, 1/2, 1/4 ... until  L(x + t d) <= L(x) + armijo t <g, d>

q is a combination of g, s_i and y_i: the loops need their inner products alone, of which those of g are new in every
step and those of a pair when it is remembered.

Inner products and decisions are over all pixels and ranks. Meant for few, large batches: by default one of all views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from ptymesh.engines.base import Engine
from ptymesh.engines.cost import EngineCost, StepNeeds
from ptymesh.engines.gradients.autodiff import Autodiff, Gradient
from ptymesh.engines.gradients.sweep import Part, packed, unpacked
from ptymesh.estimate import Estimate
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch, Problem
from ptymesh.unknowns import Unknown

Vector = dict[str, Tensor]

#: Unknowns of the object's shape.
OBJECT = ("object", "amplitude")

#: Least <s, y> of a pair, as a fraction of ||s|| ||y||, that tells curvature from rounding.
CURVED = 1e-8


class LBFGS(Autodiff, Engine):
    """Limited-memory BFGS with backtracking: of object, probe and the unknowns of the model's operators.

    Attributes:
        batch: views per update; None for all.
        memory: pairs that are remembered.
        armijo: fraction of the expected decrease that a step must bring.
        tries: steps that are tried before the memory is dropped and nothing moves.
    """

    name: ClassVar[str] = "lbfgs"
    cost: ClassVar[EngineCost] = EngineCost(2.8, per_object_pixel=18.0, whole=True)
    step_needs: ClassVar[StepNeeds] = StepNeeds(
        sums=2,
        object_sums=2,
        probe_sums=2,
        maxima=2,
        numbers=6,
        inner_products=65,
        inner_product_rounds=2,
        object_arrays=24,
    )

    batch: PositiveInt | None = None
    memory: PositiveInt = 10
    armijo: float = Field(1e-4, gt=0, lt=0.5)
    tries: PositiveInt = 8

    def moved_optics(self, optics: Sequence[Unknown]) -> frozenset[str]:
        """Return the names of all of the operators' unknowns that are not fixed: all are part of the joint step."""
        return frozenset(one.name for one in optics if not one.is_fixed)

    def named_unknowns(self) -> list[str]:
        """Return the names of the operators' unknowns that are regularised, all of which the model must have."""
        return [regulariser.of for regulariser in self.regularisers if regulariser.of != "object"]

    def check(self, problem: Problem) -> None:
        """Check that the regularisers have a meaning for a problem.

        Raises:
            BadInput: one has not.
        """
        super().check(problem)
        self.check_regularisers(problem)

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Take one step along the quasi-Newton direction, and remember its pair. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        moving = {"object", "amplitude", "probe", *self.moved_optics(problem.model.unknowns)} - batch.frozen
        at_start = self.gradient(problem, estimate, batch, moving)
        view_updates = batch.view_updates.positions, batch.view_updates.weights, batch.view_updates.gradients
        parts = self._fixed(at_start.parts)
        x, g = self.leaves(estimate, parts), _scaled(at_start, parts)
        self._drop_stale_pairs(x)
        d, slope = self._direction(problem, estimate, x, g)
        if slope >= 0:
            self._drop_pairs()
            d, slope = self._direction(problem, estimate, x, g)
        t = 1.0
        for _ in range(self.tries):
            self.write(problem, estimate, {n: x[n] + t * parts[n].scale.sqrt() * d[n] for n in x}, parts)
            at_trial = self.gradient(problem, estimate, batch, moving, note=False)
            # the only transfer from the device in a try
            after, before = torch.stack((at_trial.value, at_start.value)).cpu()
            if float(after - before) <= self.armijo * t * slope + _rounding(before):
                g_there = _scaled(at_trial, parts)
                self._remember(problem, estimate, x, {n: t * d[n] for n in x}, {n: g_there[n] - g[n] for n in x})
                break
            t /= 2  # a power of two: runs on different numbers of ranks take equal steps, or clearly different ones
        else:
            self.write(problem, estimate, x, parts)
            self._drop_pairs()
        batch.view_updates.positions, batch.view_updates.weights, batch.view_updates.gradients = view_updates

    def _fixed(self, parts: dict[str, Part]) -> dict[str, Part]:
        """Return the parts with the scale that each had when it first moved, and unit 1."""
        for name, part in parts.items():
            self.state.setdefault(f"scale.{name}", part.scale.clone())
        return {name: Part(part.slope, self.state[f"scale.{name}"]) for name, part in parts.items()}

    def _direction(self, problem: Problem, estimate: Estimate, x: Vector, g: Vector) -> tuple[Vector, float]:
        """Return d and <g, d>; steepest descent without remembered pairs."""
        pairs, m = self._remembered(x), self._pairs(x)
        basis = [*pairs, g]
        products = torch.zeros(2 * m + 1, 2 * m + 1, dtype=torch.float64)
        if m:
            products[:-1, :-1] = self.state["products"].cpu().transpose(1, 2).reshape(2 * m, 2 * m)
        products[-1] = products[:, -1] = _dots(problem, estimate, [(g, vector) for vector in basis])
        c = combination(products)
        d = {n: torch.zeros_like(g[n]) for n in x}
        for share, vector in zip(c.tolist(), basis, strict=True):
            for n in x:
                d[n] -= share * vector[n]
        return d, -float(products[-1] @ c)

    # --- memory: `unknown.s0`, `unknown.y0` the oldest pair; `products` (2, 2, m, m) <s_i, s_j>, <s_i, y_j> ... ---

    def _remember(self, problem: Problem, estimate: Estimate, x: Vector, s: Vector, y: Vector) -> None:
        """Store the pair s, y with its inner products, and drop the oldest beyond `memory`.

        A pair without curvature is skipped.
        """
        count = self._pairs(x)
        remembered = self._remembered(x)
        vectors = [*remembered[:count], s, *remembered[count:], y]
        new_products = _dots(problem, estimate, [(new, vector) for new in (s, y) for vector in vectors])
        new = new_products.view(2, 2, count + 1)
        if bool(new[0, 1, -1] <= CURVED * (new[0, 0, -1] * new[1, 1, -1]).sqrt()):
            return
        products = torch.zeros(2, 2, count + 1, count + 1, dtype=torch.float64)
        if count:
            products[..., :-1, :-1] = self.state["products"].cpu()
        products[..., -1, :], products[..., :, -1] = new, new.transpose(0, 1)
        first = int(count == self.memory)
        self.state["products"] = products[..., first:, first:].clone()
        for name in x:
            for kind, newest in (("s", s[name]), ("y", y[name])):
                if count == self.memory:
                    for i in range(count - 1):
                        self.state[f"{name}.{kind}{i}"] = self.state[f"{name}.{kind}{i + 1}"]
                place = min(count, self.memory - 1)
                self.state[f"{name}.{kind}{place}"] = packed(newest.contiguous(), newest)

    def _remembered(self, x: Vector) -> list[Vector]:
        """Return s_0, s_1 ... y_0, y_1 ..."""
        count = self._pairs(x)
        return [{n: self._recall(f"{n}.{kind}{i}", x[n]) for n in x} for kind in "sy" for i in range(count)]

    def _recall(self, key: str, like: Tensor) -> Tensor:
        return unpacked(self.state[key], like)

    def _pairs(self, x: Vector) -> int:
        """Return the number of remembered pairs."""
        first = next(iter(x))
        return sum(key.startswith(f"{first}.s") for key in self.state)

    def _drop_stale_pairs(self, x: Vector) -> None:
        """Drop the pairs if they are of other unknowns than these, on other pixels, or more than `memory`."""
        remembered_names = {key.partition(".")[0] for key in self.state if ".s" in key}
        are_current = remembered_names == set(x) and "products" in self.state
        are_current = are_current and all(self._recall(f"{name}.s0", x[name]).shape == x[name].shape for name in x)
        if not are_current or self._pairs(x) > self.memory:
            self._drop_pairs()

    def _drop_pairs(self) -> None:
        for key in [key for key in self.state if ".s" in key or ".y" in key or key == "products"]:
            del self.state[key]


def _scaled(gradient: Gradient, parts: dict[str, Part]) -> Vector:
    """Return the gradient in the metric of the scales."""
    return {name: part.slope * parts[name].scale.sqrt() for name, part in gradient.parts.items()}


def combination(products: Tensor) -> Tensor:
    """Return H g as a combination (2m + 1,) of s_i, y_i and g, by the two loops.

    They are computed from the inner products (2m + 1, 2m + 1) alone.
    """
    m = len(products) // 2
    q, first = torch.zeros_like(products[0]), products.new_zeros(m)
    q[-1] = 1
    for i in reversed(range(m)):
        first[i] = products[i] @ q / products[i, m + i]
        q[m + i] -= first[i]
    if m:
        q *= products[m - 1, 2 * m - 1] / products[2 * m - 1, 2 * m - 1]
    for i in range(m):
        q[i] += first[i] - products[m + i] @ q / products[i, m + i]
    return q


def _dots(problem: Problem, estimate: Estimate, pairs: list[tuple[Vector, Vector]]) -> Tensor:
    """Return <a, b> over all unknowns for n pairs, (n,) float64 on the host.

    Collective; one message for the object's pixels.
    """
    names = list(pairs[0][0])
    total = torch.zeros(len(pairs), dtype=torch.float64, device=problem.device)
    if of_object := [(a[n], b[n]) for n in names if n in OBJECT for a, b in pairs]:
        total = problem.fields.dots(of_object, estimate).view(-1, len(pairs)).sum(0)
    tiled = {one.name for one in problem.model.tiled}
    for name in [n for n in names if n in tiled]:
        field = replace(estimate, object=estimate.others[name])  # of as many planes
        total = total + problem.fields.dots([(a[name], b[name]) for a, b in pairs], field)
    for name in [n for n in names if n not in OBJECT and n not in tiled]:
        total = total + torch.stack([total_of(a[name] * b[name]) for a, b in pairs])
    return total.cpu()


def _rounding(value: Tensor) -> float:
    """Return the possible rounding error of a loss of this size."""
    return 8 * torch.finfo(value.dtype).eps * abs(float(value))
