"""What may be true of a scan beyond the plainest model: how a track goes on with it, and without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ptymesh.auto.race import Arena, Track
from ptymesh.run.recipe import Recipe

#: By this share what is kept lowers the residual.
GAINS = {"positions": 0.02, "intensity": 0.02, "background": 0.02, "modes": 0.03}
#: Probe modes that are tried, one after the other as long as it pays; and in the place of those that did not.
MODES, FEWER = {1: 2, 2: 4, 4: 8}, {4: 3, 8: 6}
#: Learning rates of a background: the usual one, and a careful one.
BACKGROUND = (0.1, 0.01)


@dataclass(frozen=True)
class Hypothesis:
    """One of them.

    Fields:
        name: as in GAINS. what: at the start of a sentence. key: of the recipe, at which it is told.
        track, without: how it goes on with it, and without; both with the same engine.
    """

    name: str
    what: str
    key: str
    track: Track
    without: Track


class Hypotheses:
    """All that have not been kept yet; `adam`: the engine that knows a background. refused: numbers of modes that did
    not help."""

    def __init__(self, recipe: Recipe, arena: Arena, adam: dict[str, Any]) -> None:
        self.recipe, self.arena, self.adam = recipe, arena, adam
        self.refused_modes: set[int] = set()

    def of(self, track: Track) -> Iterator[Hypothesis]:
        """Ways to go on from this track."""
        if "positions" not in track.own and self.recipe.positions.subpixel != "none":
            new = track.sharing({"positions": True}, "positions")
            yield Hypothesis("positions", "A position of each view", "stages", new, track)
        if "intensity" not in track.own:
            new = track.sharing({"probe": {"intensity": True}}, "intensity")
            yield Hypothesis("intensity", "An intensity of each view", "stages", new, track)
        more = self.more_modes(track)
        if more:
            yield Hypothesis("modes", f"{more} probe modes", "probe.modes", self.arena.with_modes(track, more), track)
        if "background" not in track.engine.get("unknowns", {}):
            adam = track.using(self.adam)
            yield Hypothesis("background", "A background", "stages", self.lit(track, BACKGROUND[0]), adam)

    def more_modes(self, track: Track) -> int:
        """The next number of modes to be tried; 0: none."""
        more = MODES.get(track.modes, 0)
        if more in self.refused_modes:
            more = FEWER.get(more, 0)
        return 0 if self.recipe.probe.modes is not None or more in self.refused_modes else more

    def lit(self, track: Track, lr: float) -> Track:
        """With a background, at this rate."""
        unknowns = {**self.adam["unknowns"], "background": {"lr": lr}}
        return track.using({**self.adam, "unknowns": unknowns})

    def without(self, track: Track, name: str, engine: dict[str, Any]) -> Track:
        """The track without what was kept: as the recipe starts there; `engine` where no background asks for Adam."""
        start, estimate = self.arena.recon.state.estimate, track.estimate
        own, shared = track.own - {name}, {key: value for key, value in track.shared.items() if key != name}
        if name == "modes":
            return self.arena.with_modes(track, len(start.probe))
        if name == "background":
            return replace(track, estimate=replace(estimate, background=start.background.clone())).using(engine)
        if name == "positions":
            nominal = estimate.nominal.clone()
            anchors = torch.floor(nominal + 0.5).to(estimate.anchors.dtype)
            estimate = replace(estimate, positions=nominal, anchors=anchors)
        if name == "intensity":
            weights = estimate.weights.clone()
            weights[:, 0] = start.weights[:, 0]
            estimate = replace(estimate, weights=weights)
            shared.pop("probe", None)
        return replace(track, estimate=estimate, own=own, shared=shared)
