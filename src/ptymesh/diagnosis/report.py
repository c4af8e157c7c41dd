"""The report on a result: whether it has converged, how far from the noise it is, and the likely causes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptymesh.diagnosis.cause import Cause, Evidence, Finding
from ptymesh.diagnosis.remedies import usable_remedy
from ptymesh.diagnosis.table import CAUSES
from ptymesh.diagnosis.view import GOOD_TIMES, ResultView
from ptymesh.errors import PtymeshError
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.run.convergence import Verdict, verdict

#: Findings that are printed, the likeliest ones.
SHOWN = 3
#: The cause that a probe in the wrong plane looks like, without the patterns.
NARROW_PROBE = "overlap"


@dataclass(frozen=True)
class Report:
    """Everything that a diagnosis has to say.

    Attributes:
        residual: frozen, of the result; noise_floor: what counting would leave of it, None where that is not known.
        verdict: on the convergence.
        findings: the likeliest first.
        views: how many were looked at.
        numbers: number and threshold of each cause whose data are there, found or not; NaN where it cannot be told.
    """

    residual: float | None
    noise_floor: float | None
    verdict: Verdict
    findings: list[Finding]
    views: int
    numbers: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON; numbers that cannot be told are None."""
        numbers = {
            name: {"number": number if math.isfinite(number) else None, "threshold": threshold}
            for name, (number, threshold) in self.numbers.items()
        }
        return {
            "final_residual": self.residual,
            "noise_floor": self.noise_floor,
            "views_looked_at": self.views,
            "convergence": asdict(self.verdict),
            "findings": [asdict(one) for one in self.findings],
            "numbers": numbers,
        }

    @property
    def times(self) -> float | None:
        """Residual as a multiple of the noise floor."""
        return self.residual / self.noise_floor if self.residual and self.noise_floor else None

    def lines(self) -> list[str]:
        """Return the report in lines of text for a terminal."""
        lines = [] if self.residual is None else [f"Residual {self.residual:.4g}{self._floor_clause()}."]
        lines.append(f"Convergence: {self.verdict}.")
        for place, one in enumerate(self.findings[:SHOWN], 1):
            lines += [f"{place}. {one}", f"   What would help: {one.remedy}"]
            if one.tried:
                lines.append(f"   {one.tried}")
        if not self.findings:
            lines.append(f"No cause among {len(self.numbers)} is recognised{self._poor_clause()}.")
        return lines

    def _floor_clause(self) -> str:
        if self.times is None:
            return "; the noise floor is not known, as the patterns are no counts" if self.views else ""
        return f", {_factor(self.times)} times the noise floor {self.noise_floor:.4g}"

    def _poor_clause(self) -> str:
        poor = self.times is not None and self.times > GOOD_TIMES
        return ", though the residual is above the noise floor" if poor else ""


def _factor(times: float) -> str:
    """Return two digits, or all before the point."""
    return f"{times:.2g}" if times < 99.5 else f"{times:.0f}"


def report(result: Result, scan: Measurement | None = None, path: Path | None = None) -> Report:
    """Return what can be said of a result, and of its data where they are given.

    Args:
        result: of a run.
        scan: the data that it was made from.
        path: of the result's file, for the commands that are printed.
    """
    view = ResultView(result, scan, path)
    numbers: dict[str, tuple[float, float]] = {}
    findings = []
    for cause in CAUSES:
        if cause.needs_patterns and scan is None:
            continue
        evidence = cause.find(view) if is_open(view, cause) else None
        numbers[cause.name] = (math.nan if evidence is None else evidence.number, cause.threshold)
        if evidence is not None and evidence.number > cause.threshold:
            findings.append(finding(view, cause, evidence))
    attrs = result.attrs
    return Report(
        attrs.get("final_residual"),
        attrs.get("noise_floor"),
        verdict(result.history, attrs.get("noise_floor")),
        sorted(findings, key=lambda one: -one.strength),
        len(view.views) if scan is not None else 0,
        numbers,
    )


def is_open(view: ResultView, cause: Cause) -> bool:
    """Return True if the residual leaves something that this cause could explain."""
    return not cause.from_times or view.misfit_times > cause.from_times


def finding(view: ResultView, cause: Cause, evidence: Evidence) -> Finding:
    """Return what is reported of a cause whose evidence exceeds its threshold."""
    remedy = usable_remedy(view, evidence.remedies, cause.name)
    return Finding(
        cause.name,
        cause.title,
        evidence.number,
        cause.threshold,
        evidence.sentence,
        remedy.text,
        remedy.settings,
        (evidence.number / cause.threshold) ** cause.weight,
    )


def first_cause(result: Result, scan: Measurement | None = None) -> Finding | None:
    """Return the likeliest cause, whose `cause` is its name and whose str() is a sentence; None where none is found."""
    findings = report(result, scan).findings
    return findings[0] if findings else None


def last_words(result: Result, path: Path, scan: Callable[[], Measurement] | None = None) -> list[str]:
    """Return three lines at most for the end of a run, from the result alone.

    Of a probe that looks narrow, the patterns have the last word.

    Args:
        result: of the run.
        path: of its file.
        scan: loads the data.
    """
    found = report(result, path=path)
    if scan is not None and any(one.cause == NARROW_PROBE for one in found.findings):
        with suppress(PtymeshError):
            found = report(result, scan(), path)
    lines = [f"Convergence: {found.verdict}."]
    if found.findings:
        lines += [str(found.findings[0]), f"What would help: {found.findings[0].remedy}"]
    elif found.times is not None and found.times > GOOD_TIMES:
        times = f"{_factor(found.times)} times the noise floor"
        lines.append(f"The residual is {times}; `ptymesh diagnose {path}` looks for the cause.")
    return lines
