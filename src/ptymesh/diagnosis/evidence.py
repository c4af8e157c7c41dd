"""Causes of a poor result: their evidence, their remedies, and the findings that are reported.

A cause is a row of the table in causes.py: a name, and one function that looks at a result (`ResultView`) and returns
the evidence. It is reported where the evidence exceeds the row's threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptymesh.diagnosis.view import ResultView


@dataclass(frozen=True)
class Remedy:
    """One thing that would help.

    Attributes:
        settings: values by the recipe's keys; `stage.X` stands for the key X of the last stage.
        unless: key of the recipe that, where it is set in any stage, makes this remedy one that was used already.
        advice: what to do where no setting does it, or a remark on the settings, as a clause.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    unless: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Evidence:
    """Evidence for a cause, returned by the cause's function.

    Attributes:
        number: how much speaks for the cause, to be compared with the row's threshold.
        sentence: what was seen, as a clause without a full stop.
        remedies: what would help, the best first; the first that can be used is named.
    """

    number: float
    sentence: str = ""
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True)
class Cause:
    """A row of the table of causes.

    Attributes:
        name: short, for scripts; title: the same in words.
        find: returns the evidence, or None where it cannot be told.
        threshold: the number above which the cause is reported.
        weight: power to which number / threshold counts in the ranking; large for what nothing else brings about.
        needs_patterns: True if the result alone does not suffice.
        needs_trial: True if it is reported only where a trial of its remedy helps much.
        mistaken_for: names of later causes that a fit takes this one for, whose signs in the verdict prove nothing
            where this one is found.
        from_times: multiple of the noise floor that a residual must exceed for this cause to be looked for; 0 for
            evidence that does not depend on how well the model fits, infinity where the verdict has to be bad.
        try_out: returns the evidence after a trial of its own, in which no remedies are tried; takes the result, and
            the evidence without it.
    """

    name: str
    title: str
    find: Callable[[ResultView], Evidence | None]
    threshold: float
    weight: float = 1.0
    needs_patterns: bool = True
    needs_trial: bool = False
    from_times: float = 1.3
    mistaken_for: frozenset[str] = frozenset()
    try_out: Callable[[ResultView, Evidence | None], Evidence | None] | None = None


@dataclass(frozen=True)
class Finding:
    """A cause that the evidence speaks for.

    Attributes:
        cause: its name; title: in words.
        number, threshold: the evidence, reported where number is above threshold.
        sentence: what was seen.
        remedy: what would help, as text; settings: the same as `KEY=VALUE`, empty where no setting helps.
        tried: what came of a trial of these settings, empty where none was made.
        strength: by which findings are ranked.
    """

    cause: str
    title: str
    number: float
    threshold: float
    sentence: str
    remedy: str
    settings: tuple[str, ...]
    strength: float
    tried: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.sentence}."
