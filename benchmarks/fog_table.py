"""Rows of the fog benchmark become a table and totals."""

from __future__ import annotations

from typing import Any

from fog_runs import first_cause, name_of, verdict_of

#: A result is poor where its error is so many times that of the right model.
LIMIT = 1.5
#: Residuals whose ratio is less fit as well.
AS_WELL = 1.03
#: Verdicts by which a poor result is known as one.
POOR = ("poor", "failed", "refused")
#: Of the table.
COLUMNS = (
    "kind",
    "level",
    "way",
    "counts a view",
    "error",
    "of the right model",
    "times the floor",
    "of the right model",
    "verdict",
    "first cause",
    "right?",
)


def is_poor(row: dict[str, Any]) -> bool:
    """Return True if the error of the judged run is more than LIMIT times that of the right one, or there is none."""
    if "right" not in row:
        return False
    wrong, right = row["run"].get("nrmse"), row["right"].get("nrmse")
    if right is None:
        return False
    return wrong is None or wrong > LIMIT * right


def fits_as_well(row: dict[str, Any]) -> bool:
    """Return True if the judged residual is that of the right model or lower: then no residual shows the fault."""
    wrong, right = row["run"].get("times"), row.get("right", {}).get("times")
    return wrong is not None and right is not None and wrong <= AS_WELL * right


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table in markdown, one line a scan."""
    found = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in sorted(rows, key=lambda row: (not row["healthy"], row["kind"], row["way"], row["level"])):
        run, right = row["run"], row.get("right", {})
        name = row["kind"] if row["healthy"] else f"{row['kind']} {row['value']}"
        cells = [name + (" (held back)" if row.get("held_back") else ""), str(row["level"]), row["way"]]
        cells += [f"{row['dose']:.3g}", _number(run.get("nrmse")), _number(right.get("nrmse"))]
        cells += [_number(run.get("times")), _number(right.get("times")), verdict_of(run)]
        cells += [str(name_of(run) or ""), judgement(row)]
        found.append("| " + " | ".join(cells) + " |")
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def judgement(row: dict[str, Any]) -> str:
    """Return what the verdict is worth: right, missed, false alarm, or harmless (a fault that did no harm)."""
    verdict = verdict_of(row["run"])
    if row.get("apart"):
        return f"apart: {row['apart']}"
    if is_poor(row):
        if verdict not in POOR:
            return "MISSED" if verdict != "crashed" else "CRASHED"
        named = first_cause(row["run"], row.get("causes", []), row.get("words", []))
        return "yes" if named else "yes, another cause"
    if row["healthy"]:
        return "yes" if verdict == "good" else "FALSE ALARM"
    return "harmless" if verdict == "good" else f"harmless, {verdict}"


def totals(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return what is promised, and what else is worth knowing."""
    counted = [row for row in rows if not row.get("apart")]
    poor = [row for row in counted if is_poor(row)]
    healthy = [row for row in counted if row["healthy"] and not is_poor(row)]
    faults = [row for row in poor if not row["healthy"]]
    auto = [row for row in counted if row["way"] == "auto"]
    rights = [row["right"] for row in counted if not row["healthy"] and row["way"] == "recipe" and "right" in row]
    harmless = [row for row in counted if not row["healthy"] and not is_poor(row)]
    held_back = [row for row in poor if row.get("held_back")]

    def called(some: list[dict[str, Any]]) -> str:
        return f"{sum(verdict_of(row['run']) in POOR for row in some)} of {len(some)}"

    alarms = sum(verdict_of(one) in POOR for one in rights)
    named = sum(first_cause(row["run"], row["causes"], row["words"]) for row in faults)
    agreed = [row for row in auto if (verdict_of(row["run"]) in POOR) == is_poor(row)]
    return {
        "poor called poor": called(poor),
        "of these, those that a residual shows": called([row for row in poor if not fits_as_well(row)]),
        "of these, those that fit as well as the right model": called([row for row in poor if fits_as_well(row)]),
        "of kinds held back": called(held_back),
        "healthy called poor": called(healthy),
        "healthy not called good": f"{sum(verdict_of(row['run']) != 'good' for row in healthy)} of {len(healthy)}",
        "first cause right": f"{named} of {len(faults)}",
        "by auto, called what it is": f"{len(agreed)} of {len(auto)}",
        "by auto, poor": f"{sum(map(is_poor, auto))} of {len(auto)}",
        "right models of faulty scans called poor": f"{alarms} of {len(rights)}",
        "faults that did no harm, called poor": called(harmless),
    }
