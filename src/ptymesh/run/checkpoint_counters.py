"""Counters of a checkpoint: where its run stands, and on which frame. They are checked when they are read."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ptymesh.distributed.tiles import Rect
from ptymesh.errors import BadInput
from ptymesh.run.position_check import PositionCheck
from ptymesh.verdict.term_trial import TermCheck

#: No scan is larger in any direction.
MOST = 2**40
Count = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Side = Annotated[int, Field(ge=1, le=2**31, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Corners = tuple[Count, Count, Count, Count]


class Counters(BaseModel):
    """Counters of a run, as `RunState.save` writes them.

    Attributes:
        stage, epoch, batch, epoch_seconds: as in RunState.
        origin, extent, slice_spacing_m, tilt_rad, parameters, initial_parameters: as in Estimate.
        object_kind: as in Estimate.
        absorption: as in Estimate, of an object that follows from values; None of any other.
        position_check, term_checks: as in RunState.
        layout: of the object; window: (h, w) of the problem; parts: the rectangle that each rank held, if it had one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: Count
    epoch: Count
    batch: Count
    epoch_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    origin: tuple[Finite, Finite]
    extent: tuple[Side, Side]
    layout: Literal["replicated", "tiled"]
    window: tuple[Side, Side]
    parts: list[Corners]
    slice_spacing_m: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    tilt_rad: tuple[Finite, Finite]
    parameters: dict[str, dict[str, Finite]] = Field(default_factory=dict)
    initial_parameters: dict[str, dict[str, Finite]] = Field(default_factory=dict)
    object_kind: Annotated[str, Field(max_length=200)] = "transmission"
    absorption: Finite | None = None
    position_check: PositionCheck | None = None
    term_checks: Annotated[list[TermCheck], Field(max_length=1000)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _gains_are_finite(self) -> Counters:
        checks: list[PositionCheck | TermCheck] = [*self.term_checks]
        for one in checks + ([] if self.position_check is None else [self.position_check]):
            if not (math.isfinite(one.gain) and math.isfinite(one.errors)):
                raise ValueError("the gain of refined positions or terms is no number")
        return self

    @model_validator(mode="after")
    def _within(self) -> Counters:
        """Refuse parts that reach beyond the object."""
        height, width = self.extent
        if any(bottom > height or right > width for _, _, bottom, right in self.parts):
            raise ValueError("a rank's part is no part of the object")
        return self

    @property
    def rectangles(self) -> list[Rect]:
        """The parts of the object that ranks held, as rectangles."""
        return [Rect(*part) for part in self.parts]


def counters_of(meta: dict[str, object]) -> Counters:
    """Return the counters in a checkpoint's meta. Raises BadInput where they cannot be."""
    try:
        return Counters.model_validate(meta.get("run"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "run"
        raise BadInput(
            f"The checkpoint does not say where the run stands ({place}: {first['msg']}); copy the whole folder again."
        ) from error
