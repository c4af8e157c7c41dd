"""Limited-memory BFGS over object and probe together.

Nocedal & Wright, Numerical Optimization, 2nd ed. (2006), algorithms 7.4 (two loops) and 3.1 (backtracking)

x, g       unknowns, and gradient of the loss, both in the metric of the unknown's scale K (sweep.py): each x over
           sqrt(K), slope times sqrt(K); K as found when the unknown first moved
s_i, y_i   differences of x and g over one accepted step, both ends on the same batch;  rho_i = 1 / <s_i, y_i>

    q <- g;   from the newest:  a_i = rho_i <s_i, q>,  q <- q - a_i y_i
    q <- (<s, y> / <y, y>) q of the newest pair
    from the oldest:  q <- q + s_i (a_i - rho_i <y_i, q>);   d = -q
    x <- x + t d,  t = 1, 1/2, 1/4 ... until  L(x + t d) <= L(x) + armijo t <g, d>

Inner products and decisions are over all pixels and ranks. Meant for few, large batches: by default one of all views.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from ptymesh.engines.autodiff import Autodiff, Gradient
from ptymesh.engines.sweep import Part, packed, unpacked
from ptymesh.estimate import Estimate
from ptymesh.problem import Batch, Problem

Vector = dict[str, Tensor]

#: Unknowns of the object's shape.
OBJECT = ("object", "amplitude")

#: Pairs whose <s, y> is below this fraction of ||s|| ||y|| say nothing about curvature.
CURVED = 1e-8


class LBFGS(Autodiff):
    """Limited-memory BFGS with backtracking.

    memory: pairs that are remembered; armijo: fraction of the expected decrease that a step must bring; tries: steps
    that are tried before the memory is dropped and nothing moves.
    """

    name: ClassVar[str] = "lbfgs"

    batch: PositiveInt | None = None
    memory: PositiveInt = 10
    armijo: float = Field(1e-4, gt=0, lt=0.5)
    tries: PositiveInt = 8

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """One step along the quasi-Newton direction, and the pair that it teaches."""
        wanted = {"object", "amplitude"} if problem.probe_frozen else {"object", "amplitude", "probe"}
        here = self.gradient(problem, estimate, batch, wanted)
        upkeep = list(problem.position_steps), list(problem.weight_steps), problem.last
        parts = self._fixed(here.parts)
        x, g = self.leaves(estimate, parts), _scaled(here, parts)
        self._forget_others(x)
        d = self._direction(problem, estimate, x, g)
        slope = float(_dot(problem, estimate, g, d))
        if slope >= 0:
            self._forget()
            d, slope = {name: -part for name, part in g.items()}, -float(_dot(problem, estimate, g, g))
        t = 1.0
        for _ in range(self.tries):
            self.write(problem, estimate, {n: x[n] + t * parts[n].scale.sqrt() * d[n] for n in x}, parts)
            there = self.gradient(problem, estimate, batch, wanted, note=False)
            if float(there.value - here.value) <= self.armijo * t * slope + _rounding(here.value):
                g_there = _scaled(there, parts)
                self._remember(problem, estimate, x, {n: t * d[n] for n in x}, {n: g_there[n] - g[n] for n in x})
                break
            t /= 2  # a power of two: steps of different numbers of ranks differ by nothing, or visibly
        else:
            self.write(problem, estimate, x, parts)
            self._forget()
        problem.position_steps[:], problem.weight_steps[:], problem.last = upkeep

    def _fixed(self, parts: dict[str, Part]) -> dict[str, Part]:
        """The parts in the scale that each had when it first moved; units are left to the scale."""
        for name, part in parts.items():
            self.state.setdefault(f"scale.{name}", part.scale.clone())
        return {name: Part(part.slope, self.state[f"scale.{name}"]) for name, part in parts.items()}

    def _direction(self, problem: Problem, estimate: Estimate, x: Vector, g: Vector) -> Vector:
        pairs = [
            ({n: self._recall(f"{n}.s{i}", x[n]) for n in x}, {n: self._recall(f"{n}.y{i}", x[n]) for n in x})
            for i in range(self._pairs(x))
        ]
        products = [_dot(problem, estimate, s, y) for s, y in pairs]
        q, first = dict(g), []
        for (s, y), sy in zip(reversed(pairs), reversed(products), strict=True):
            first.append(_dot(problem, estimate, s, q) / sy)
            q = {n: q[n] - first[-1] * y[n] for n in q}
        if pairs:
            y = pairs[-1][1]
            q = {n: q[n] * (products[-1] / _dot(problem, estimate, y, y)) for n in q}
        for (s, y), sy, a in zip(pairs, products, reversed(first), strict=True):
            b = _dot(problem, estimate, y, q) / sy
            q = {n: q[n] + (a - b) * s[n] for n in q}
        return {n: -q[n] for n in q}

    # --- memory: `unknown.s0`, `unknown.y0` the oldest pair ---

    def _remember(self, problem: Problem, estimate: Estimate, x: Vector, s: Vector, y: Vector) -> None:
        sy, ss, yy = _dot(problem, estimate, s, y), _dot(problem, estimate, s, s), _dot(problem, estimate, y, y)
        if bool(sy <= CURVED * (ss * yy).sqrt()):
            return
        count = self._pairs(x)
        for name in x:
            for kind, newest in (("s", s[name]), ("y", y[name])):
                if count == self.memory:
                    for i in range(count - 1):
                        self.state[f"{name}.{kind}{i}"] = self.state[f"{name}.{kind}{i + 1}"]
                place = min(count, self.memory - 1)
                self.state[f"{name}.{kind}{place}"] = packed(newest.contiguous(), newest)

    def _recall(self, key: str, like: Tensor) -> Tensor:
        return unpacked(self.state[key], like)

    def _pairs(self, x: Vector) -> int:
        first = next(iter(x))
        return sum(key.startswith(f"{first}.s") for key in self.state)

    def _forget_others(self, x: Vector) -> None:
        """Pairs of other unknowns than these, on other pixels, or more than are to be remembered, are of no use."""
        known = {key.partition(".")[0] for key in self.state if ".s" in key}
        kept = known == set(x) and all(self._recall(f"{name}.s0", x[name]).shape == x[name].shape for name in x)
        if not kept or self._pairs(x) > self.memory:
            self._forget()

    def _forget(self) -> None:
        for key in [key for key in self.state if ".s" in key or ".y" in key]:
            del self.state[key]


def _scaled(gradient: Gradient, parts: dict[str, Part]) -> Vector:
    return {name: part.slope * parts[name].scale.sqrt() for name, part in gradient.parts.items()}


def _dot(problem: Problem, estimate: Estimate, a: Vector, b: Vector) -> Tensor:
    """<a, b> over all unknowns; the object's pixels lie with several ranks."""
    parts = [
        problem.dot(a[name], b[name], estimate) if name in OBJECT else (a[name] * b[name]).sum(dtype=torch.float64)
        for name in a
    ]
    return torch.stack(parts).sum()


def _rounding(value: Tensor) -> float:
    """What a loss of this size may be off by."""
    return 8 * torch.finfo(value.dtype).eps * abs(float(value))
