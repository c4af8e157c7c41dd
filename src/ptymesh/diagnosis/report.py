"""The report on a result: the verdict, whether the iteration has converged, and the likely causes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ptymesh.compare import Moves, moves_of_result
from ptymesh.diagnosis.causes import CAUSES
from ptymesh.diagnosis.evidence import Cause, Evidence, Finding
from ptymesh.diagnosis.remedies import UsableRemedy, usable_remedies
from ptymesh.diagnosis.trials import Trials
from ptymesh.diagnosis.view import ResultView
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.printable import finite
from ptymesh.verdict.convergence import Convergence, judge_convergence
from ptymesh.verdict.judging import factor_in_words

#: Findings that are printed, the likeliest ones.
SHOWN = 3
#: Strength from which on a finding needs no others beside it; below which moves may be what a thick sample asks for.
CERTAIN, WEAK = 10.0, 5.0
#: Share of the residual without a remedy below which it helps much; strength of a finding that just does.
MUCH, SMALLEST_GAIN = 0.9, 2.0
#: Strength of causes that the verdict has a sign of: above what others can have.
SURE = 1e6
#: Verdicts of which the cause is asked.
BAD = ("poor", "failed")


@dataclass(frozen=True)
class Report:
    """Everything that a diagnosis has to say.

    Attributes:
        residual: frozen, of the result.
        noise_floor: least residual that counting explains, None where that is not known.
        convergence: of the iteration.
        findings: causes that the evidence speaks for, the likeliest first.
        views: how many were looked at.
        numbers: number and threshold of each cause whose data are there, found or not; NaN where it cannot be told.
        verdict: of the run (good, poor, failed or unknown), empty where an older version made the result.
        reason: the verdict's sentence.
        times: misfit as a multiple of what counting leaves, None where that is not known.
        moves: of the positions from where they were recorded; None where none were refined.
    """

    residual: float | None
    noise_floor: float | None
    convergence: Convergence
    findings: list[Finding]
    views: int
    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)
    verdict: str = ""
    reason: str = ""
    times: float | None = None
    moves: Moves | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the report for JSON; numbers that cannot be told are None."""
        return {
            "verdict": self.verdict or None,
            "verdict_sentence": self.reason or None,
            "first_cause": self.findings[0].cause if self.findings else None,
            "final_residual": self.residual,
            "noise_floor": self.noise_floor,
            "times_noise_floor": self.times,
            "views_looked_at": self.views,
            "convergence": asdict(self.convergence),
            "findings": [asdict(one) for one in self.findings],
            "numbers": {
                name: {"number": finite(number), "threshold": threshold}
                for name, (number, threshold) in self.numbers.items()
            },
            "positions": None if self.moves is None else self.moves.summary(),
        }

    def lines(self) -> list[str]:
        """Return the report in lines of text for a terminal."""
        lines = [] if self.residual is None else [f"Residual {self.residual:.4g}{self._floor_clause()}."]
        if self.verdict:
            lines.append(f"Verdict: {self.verdict}: {self.reason}.")
        lines.append(f"Convergence of the iteration: {self.convergence}.")
        for place, one in enumerate(self.findings[:SHOWN], 1):
            lines += [f"{place}. {one}", f"   What would help: {one.remedy}"]
            if one.tried:
                lines.append(f"   {one.tried}")
        if not self.findings:
            lines.append(f"No cause among {len(self.numbers)} is recognised{self._poor_clause()}.")
        if self.moves is not None:
            lines.append(f"Positions: {self.moves.sentence()}.")
        return lines

    def _floor_clause(self) -> str:
        if self.times is None:
            return "; what noise leaves is not known, as the patterns are no counts" if self.views else ""
        return f", {factor_in_words(self.times)} times what counting leaves"

    def _poor_clause(self) -> str:
        return f", though the result is {self.verdict}" if self.verdict in BAD else ""


def report(result: Result, scan: Measurement | None = None, path: Path | None = None, trials_s: float = 0.0) -> Report:
    """Return what can be said of a result, and of its data where they are given.

    Args:
        result: of a run.
        scan: the data that it was made from.
        path: of the result's file, for the commands that are printed.
        trials_s: seconds within which what would help is tried on some views; 0: nothing is tried.

    Raises:
        BadInput: there is a single view.
    """
    if len(result.positions_px) < 2:
        raise BadInput("The result has a single view, and causes show between views; give a result of more views.")
    view = ResultView(result, scan, path)
    numbers: dict[str, tuple[float, float]] = {}
    causes_found: list[tuple[Cause, Evidence]] = []
    for cause in CAUSES:
        if cause.needs_patterns and scan is None:
            continue
        evidence = cause.find(view) if is_open(view, cause) else None
        if cause.try_out is not None and trials_s > 0:
            evidence = cause.try_out(view, evidence)
        mistaken = any(cause.name in other.mistaken_for for other, _ in causes_found)
        if cause.name in view.signs and not mistaken:
            evidence = _strengthen(evidence, cause, view)
        numbers[cause.name] = (math.nan if evidence is None else evidence.number, cause.threshold)
        if evidence is not None and evidence.number > cause.threshold:
            causes_found.append((cause, evidence))
    trials = Trials(view, trials_s) if trials_s > 0 and scan is not None else None
    attrs = result.attrs
    return Report(
        residual=attrs.get("final_residual"),
        noise_floor=attrs.get("noise_floor"),
        convergence=judge_convergence(result.history, attrs.get("noise_level", attrs.get("noise_floor"))),
        findings=_findings(view, causes_found, trials),
        views=len(view.views) if scan is not None else 0,
        numbers=numbers,
        verdict=result.verdict,
        reason=str(attrs.get("verdict_sentence", "")),
        times=_times(attrs),
        moves=moves_of_result(result),
    )


def _times(attrs: dict[str, Any]) -> float | None:
    """Return the misfit as a multiple of what counting leaves; of results of older versions, the residual over it."""
    times, residual, floor = (attrs.get(name) for name in ("times_noise", "final_residual", "noise_floor"))
    return times if times is not None else residual / floor if residual and floor else None


def is_open(view: ResultView, cause: Cause) -> bool:
    """Return True if the residual leaves something that this cause could explain, or the verdict is bad anyway."""
    return not cause.from_times or view.misfit_times > cause.from_times or view.result.verdict in BAD


def _strengthen(evidence: Evidence | None, cause: Cause, view: ResultView) -> Evidence:
    """Return evidence that is at least as strong as the verdict's own sign of this cause.

    Args:
        evidence: what was measured; None for none.
        cause: one that the verdict has named as a sign.
        view: the result, whose signs are sorted by their weight.
    """
    evidence_now = evidence or Evidence(0.0)
    sentence = (
        evidence_now.sentence
        if evidence_now.number > cause.threshold
        else str(view.result.attrs.get("verdict_sentence", ""))
    )
    sure = cause.threshold * (SURE / (1 + view.signs.index(cause.name))) ** (1 / cause.weight)
    return replace(evidence_now, number=max(evidence_now.number, sure), sentence=sentence)


def _findings(view: ResultView, causes_found: list[tuple[Cause, Evidence]], trials: Trials | None) -> list[Finding]:
    """Return what is reported, the likeliest first; causes that need a trial only where that helps much."""
    certain = sorted((one for one in causes_found if not one[0].needs_trial), key=lambda one: -strength(*one))
    findings = []
    for place, (cause, evidence) in enumerate(certain):
        is_tried = place < SHOWN and cause.try_out is None
        findings.append(finding(view, cause, evidence, trials if is_tried else None))
    # a thick sample asks for moves a little, and nothing else is known to leave so much
    weak = all(one.cause == "vibration" and one.strength < WEAK for one in findings)
    if weak and trials is None and view.is_of_electrons:
        untried = [finding(view, *one) for one in causes_found if one[0].needs_trial]
        return [*untried, *findings]
    sure = bool(findings) and findings[0].strength > CERTAIN
    for cause, evidence in causes_found:
        if cause.needs_trial and trials is not None and not sure:
            tried = tried_finding(view, cause, evidence, trials)
            findings += [] if tried is None else [tried]
    return sorted(findings, key=lambda one: -one.strength)


def tried_finding(view: ResultView, cause: Cause, evidence: Evidence, trials: Trials) -> Finding | None:
    """Return the finding of a cause that only a trial can show; None where no remedy helps much.

    Args:
        view: the result.
        cause: row of the table.
        evidence: for it.
        trials: by which remedies are tried.
    """
    results = [(trials.run(one), one) for one in usable_remedies(view, evidence.remedies, cause.name)]
    helped = [(trial, one) for trial, one in results if trial is not None and trial.with_remedy < MUCH * trial.without]
    if not helped:
        return None
    trial, remedy = min(helped, key=lambda one: one[0].with_remedy)
    gain = trial.without / max(trial.with_remedy, 1e-30)
    return Finding(
        cause.name,
        cause.title,
        gain,
        1 / MUCH,
        evidence.sentence,
        remedy.text,
        remedy.settings,
        (gain * MUCH) ** 4 * SMALLEST_GAIN,
        str(trial),
    )


def strength(cause: Cause, evidence: Evidence) -> float:
    """Return the number by which findings are ranked."""
    return float((evidence.number / cause.threshold) ** cause.weight)


def finding(view: ResultView, cause: Cause, evidence: Evidence, trials: Trials | None = None) -> Finding:
    """Return what is reported of a cause whose evidence exceeds its threshold.

    With trials, the remedy is the first that helps, or that cannot be tried; those that do not help are not named.

    Args:
        view: the result.
        cause: row of the table.
        evidence: for it.
        trials: by which remedies are tried; None if none is to be tried.
    """
    tried = ""
    chosen = UsableRemedy("no setting that this recipe takes and does not have already is known to help")
    for remedy in usable_remedies(view, evidence.remedies, cause.name):
        trial = trials.run(remedy) if trials is not None else None
        if trial is None or trial.helps:
            chosen = remedy
            tried = str(trial) if trial is not None else "not tried" if trials is not None and remedy.settings else ""
            break
        tried = f"{' '.join(remedy.settings)} did not help ({trial})"
    return Finding(
        cause.name,
        cause.title,
        evidence.number,
        cause.threshold,
        evidence.sentence,
        chosen.text,
        chosen.settings,
        strength(cause, evidence),
        tried,
    )


def last_words(
    result: Result, path: Path, scan: Callable[[], Measurement] | None = None
) -> tuple[list[str], str | None]:
    """Return a few lines for the end of a run, and the name of the first cause of a result that is not good.

    Args:
        result: of the run.
        path: of its file.
        scan: loads the data, which are looked at where the verdict is poor or failed.
    """
    lines = [f"Convergence of the iteration: {result.convergence}."] if result.convergence else []
    if result.verdict not in BAD:
        return lines, None
    causes = None
    if scan is not None:
        with suppress(PtymeshError):
            causes = report(result, scan(), path)
    causes = causes or report(result, path=path)  # the data may be gone
    if not causes.findings:
        return [*lines, f"No cause is recognised; `ptymesh diagnose {path}` shows all numbers (--json)."], None
    first = causes.findings[0]
    return [*lines, f"Likely cause: {first}", f"What would help: {first.remedy}"], first.cause
