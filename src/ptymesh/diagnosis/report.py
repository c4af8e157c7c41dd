"""What is said of a result: whether it has converged, how far from the noise it is, and what is the likely cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptymesh.diagnosis import Cause, Finding, Look, causes
from ptymesh.errors import PtymeshError
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.run.convergence import Verdict, verdict

#: Findings that are printed, the likeliest ones; times of the noise floor that a residual may be without remark.
SHOWN, NEAR = 3, 1.3
#: The cause that a probe in the wrong plane looks like, without the patterns.
NARROW = "overlap"


@dataclass(frozen=True)
class Report:
    """All that a diagnosis has to say.

    residual: frozen, of the result; noise_floor: what counting would leave of it, None where that is not known;
    views: how many were looked at; numbers: of each cause, found or not, its number and threshold.
    """

    residual: float | None
    noise_floor: float | None
    verdict: Verdict
    findings: list[Finding]
    views: int
    numbers: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; numbers that cannot be told are None."""
        numbers = {
            name: {"number": number if math.isfinite(number) else None, "threshold": threshold}
            for name, (number, threshold) in self.numbers.items()
        }
        return {
            "final_residual": self.residual,
            "noise_floor": self.noise_floor,
            "views_looked_at": self.views,
            "convergence": asdict(self.verdict),
            "findings": [one.as_dict() for one in self.findings],
            "numbers": numbers,
        }

    @property
    def times(self) -> float | None:
        """Residual as a multiple of the noise floor."""
        return self.residual / self.noise_floor if self.residual and self.noise_floor else None

    def lines(self) -> list[str]:
        """The report in lines of text for a terminal."""
        said = [] if self.residual is None else [f"Residual {self.residual:.4g}{self._beside()}."]
        said.append(f"Convergence: {self.verdict}.")
        for place, one in enumerate(self.findings[:SHOWN], 1):
            said += [f"{place}. {one}", f"   What would help: {one.recipe}"]
        if not self.findings:
            count = f" among {len(self.numbers)}"
            said.append(f"No cause{count} is recognised{self._poor()}.")
        return said

    def _beside(self) -> str:
        if self.times is None:
            return "; the noise floor is not known, as the patterns are no counts" if self.views else ""
        return f", {_factor(self.times)} times the noise floor {self.noise_floor:.4g}"

    def _poor(self) -> str:
        poor = self.times is not None and self.times > NEAR
        return ", though the residual is above the noise floor" if poor else ""


def _factor(times: float) -> str:
    """Two digits, or all before the point."""
    return f"{times:.2g}" if times < 99.5 else f"{times:.0f}"


def report(result: Result, scan: Measurement | None = None) -> Report:
    """Look at a result, and at its data where they are given."""
    look = Look(result, scan)
    numbers, found = {}, []
    for cause in _applicable(scan is not None):
        number = cause.number(look)
        numbers[cause.name] = (number, cause.threshold)
        if number > cause.threshold:
            found.append(cause.finding(look, number))
    attrs = result.attrs
    return Report(
        attrs.get("final_residual"),
        attrs.get("noise_floor"),
        verdict(result.history, attrs.get("noise_floor")),
        sorted(found, key=lambda one: -one.strength),
        len(look.views) if scan is not None else 0,
        numbers,
    )


def _applicable(data: bool) -> list[Cause]:
    return [cause for cause in causes() if data or not cause.patterns]


def last_words(result: Result, path: Path, scan: Callable[[], Measurement] | None = None) -> list[str]:
    """Three lines at most for the end of a run, from the result alone; of a probe that looks narrow the patterns, which
    `scan` loads, have the last word."""
    found = report(result)
    if scan is not None and any(one.cause == NARROW for one in found.findings):
        with suppress(PtymeshError):
            found = report(result, scan())
    said = [f"Convergence: {found.verdict}."]
    if found.findings:
        said += [str(found.findings[0]), f"What would help: {found.findings[0].recipe}"]
    elif found.times is not None and found.times > NEAR:
        times = f"{_factor(found.times)} times the noise floor"
        said.append(f"The residual is {times}; `ptymesh diagnose {path}` looks for the cause.")
    return said
