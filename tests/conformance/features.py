"""The table engine x feature: small problems that have one feature each, and what an engine's `check` says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from ptymesh.engines import ENGINES, Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.beam.probes import extra_modes
from ptymesh.run import resolution
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engines.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass(frozen=True)
class Feature:
    """A small problem, options of the stage, and how the start is changed."""

    problem: dict[str, Any] = field(default_factory=dict)
    stage: dict[str, Any] = field(default_factory=dict)
    start: Callable[[Estimate], Estimate] = lambda e: e
    mask: bool = False


def with_opr(e: Estimate) -> Estimate:
    """One OPR mode, nobody's share yet."""
    mode = extra_modes(e.probe[0], 2, [0.5, 0.5], 0)[1:].to(e.probe.dtype)
    return replace(e, opr=mode, weights=torch.cat((e.weights, torch.zeros_like(e.weights)), dim=1))


FEATURES: dict[str, Feature] = {
    "far field": Feature(),
    "near field": Feature({"propagation": "angular_spectrum"}),
    "probe modes": Feature({"modes": 2}),
    "multislice": Feature({"slices": 2}),
    "object modes": Feature({"object_modes": 2}),
    "tilted slices": Feature({"slices": 2, "tilt_rad": (8e-3, -5e-3)}),
    "positions": Feature(stage={"positions": True}),
    "scan geometry": Feature(stage={"models": {"scan_geometry": True}}),
    "geometry by patterns": Feature(stage={"models": {"scan_geometry": {"follow": "patterns"}}}),
    "aberrations": Feature(stage={"models": {"aberrations": True}}),
    "OPR modes": Feature(start=with_opr),
    "intensity per view": Feature({"varying": True}, {"probe": {"intensity": True}}),
    "mask": Feature(mask=True),
    "background": Feature({"background": 1.0}),
    "poisson": Feature({"noise": True}, {"fidelity": "poisson"}),
    "intensity": Feature({"noise": True}, {"fidelity": "intensity"}),
    "bilinear": Feature({"subpixel": "bilinear"}),
    "whole pixels": Feature({"subpixel": "none"}),
    "compact batches": Feature(stage={"order": "compact", "batch": 10}),
    "coarse to fine": Feature(stage={"coarsen": 2}),
}
#: Engines whose cells are alike: they differ in their formula alone.
ALIKE = {"adamw", "nadam", "radam", "adamax", "adagrad", "adadelta", "rmsprop", "sgd"}


def problem_of(feature: Feature) -> Toy:
    """The small problem, its last rows of the detector masked where the feature is a mask."""
    toy = make(**{"views": 30, "window": (24, 24), **feature.problem})
    if not feature.mask:
        return toy
    mask = np.ones((24, 24), dtype=bool)
    mask[5:8] = False
    return replace(toy, measurement=replace(toy.measurement, mask=mask))


def stage_of(engine: type[Engine], feature: Feature, **options: Any) -> Engine:
    """A stage with the feature; raises ValidationError or BadInput where the engine's options exclude it."""
    return engine.model_validate({**feature.stage, **options})


def refusal(engine: type[Engine], feature: Feature) -> str | None:
    """Why the engine refuses the feature, or None."""
    try:
        stage = stage_of(engine, feature)
        problem = problem_of(feature).problem()
        stage.check(problem)
        resolution.check_coarsening(stage, problem)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    except BadInput as error:
        return str(error)
    return None


def run(engine: type[Engine], feature: Feature, epochs: int) -> tuple[float, float]:
    """Residual before and after so many epochs."""
    toy = problem_of(feature)
    start = feature.start(toy.start(position_error=0.3 if "positions" in feature.stage else 0.0))
    before, _ = toy.problem().residual(start)
    problem, state = toy.problem(), RunState(start)
    stage = stage_of(
        engine, feature, epochs=epochs, **({} if engine.model_fields["batch"].default is None else {"batch": 10})
    )
    Loop(problem, state, [stage], seed=1).run()
    return before, problem.residual(state.estimate)[0]


def table() -> str:
    """The table in Markdown, and below it why the empty cells are empty."""
    engines = {name: engine for name, engine in ENGINES.items() if name not in ALIKE}
    lines = ["| | " + " | ".join(f"`{name}`" for name in engines) + " |", "|---|" + ":-:|" * len(engines)]
    notes: dict[str, list[str]] = {}
    for label, feature in FEATURES.items():
        cells = []
        for name, engine in engines.items():
            reason = refusal(engine, feature)
            cells.append(" " if reason else "✓")
            if reason:
                notes.setdefault(reason, []).append(f"`{name}`")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", "What is said where a cell is empty:", ""]
    lines += [f"- {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in notes.items()]
    return "\n".join(lines)


def page_with(table_: str, page: str) -> str:
    """The page with this table between its marks."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n\n{table_}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
