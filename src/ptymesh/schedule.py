"""Options for the epochs of a stage in which something is active."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, model_validator

#: Largest number of epochs or views that is accepted; larger ones are mistakes.
MOST = 10**9
Count = Annotated[int, Field(gt=0, le=MOST)]


class Schedule(BaseModel):
    """Epochs of a stage, counted from 1, in which something is done: from `start` to `stop`, every `every`.

    A part of option groups, which are `Options` beside it.
    """

    start: Count = 1
    stop: Count | None = None
    every: Count = 1

    @model_validator(mode="after")
    def _ordered(self) -> Schedule:
        if self.stop is not None and self.stop < self.start:
            raise ValueError(f"stop ({self.stop}) comes before start ({self.start})")
        return self

    def active(self, epoch: int) -> bool:
        """Return True if the schedule is active in this epoch (counted from 1)."""
        return (
            epoch >= self.start and (self.stop is None or epoch <= self.stop) and (epoch - self.start) % self.every == 0
        )


def _switch(value: object) -> object:
    """Return default settings for `true` and None for `false`."""
    return {} if value is True else None if value is False else value


OnOff = BeforeValidator(_switch)
