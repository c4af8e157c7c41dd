"""What a cause is, and what is found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ptymesh.diagnosis.look import Look


@dataclass(frozen=True)
class Finding:
    """A cause that the evidence speaks for.

    cause: its name; title: in words; number, threshold: the evidence, found where number is above threshold;
    sentence: what was seen; recipe: the line that would help. strength: by which findings are ranked.
    """

    cause: str
    title: str
    number: float
    threshold: float
    sentence: str
    recipe: str
    strength: float

    def as_dict(self) -> dict[str, Any]:
        """Its fields by name, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.title}: {self.sentence}."


class Cause(ABC):
    """A cause of a poor result; one file of this package, found by being there.

    name: of the cause, and title: the same in words. patterns: whether the data are needed; threshold: of the number.
    weight: the power to which number / threshold counts in the ranking; evidence that nothing else can make, such as
    counts that stop at one number, has a large one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    patterns: ClassVar[bool] = True
    threshold: ClassVar[float]
    weight: ClassVar[float] = 1.0

    @abstractmethod
    def number(self, look: Look) -> float:
        """How much speaks for it; NaN where that cannot be told."""

    @abstractmethod
    def sentence(self, look: Look, number: float) -> str:
        """What was seen, as a clause without a full stop."""

    @abstractmethod
    def recipe(self, look: Look) -> str:
        """The line of a recipe, or the command, that would help."""

    def finding(self, look: Look, number: float) -> Finding:
        """What is said where the number is above the threshold."""
        strength = (number / self.threshold) ** self.weight
        sentence, recipe = self.sentence(look, number), self.recipe(look)
        return Finding(self.name, self.title, number, self.threshold, sentence, recipe, strength)
