"""Segments of a live run: each in the memory of the one before, with the bits that it would have in its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.world import Solo
from ptymesh.engines import RPIE
from ptymesh.live import receiving
from ptymesh.live.frames import MOST, Frames
from ptymesh.live.receiving import Receiver
from ptymesh.live.spool import StreamDescription
from ptymesh.measurement import Measurement
from ptymesh.physics.model import Model
from ptymesh.problem import Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from ptymesh.storage.cached import CachedViews, PatternCache


def part_of(scan: Measurement, views: np.ndarray, cache: PatternCache) -> Measurement:
    patterns = CachedViews(cache, scan.patterns, views)
    return replace(
        scan, patterns=patterns, positions=scan.positions[views], stored_positions=None, steps=None, intensity=None
    )


def test_a_segment_in_the_memory_of_another() -> None:
    made = simulate(views=24, window=32, seed=2)
    scan, whole = made.measurement, made.truth.estimate()
    model, cache = Model.for_geometry(scan.geometry, dtype=torch.complex64), PatternCache()
    problem: Problem | None = None
    for views in (np.arange(12), np.arange(4, 20), np.array([0, 3, 23])):
        found = []
        part = part_of(scan, views, cache)
        layout = Replicated(Solo(), part.positions)
        fresh = Problem(model, part, layout, torch.complex64)
        problem = fresh if problem is None else problem.with_views(part, layout)
        for one in (Problem(model, part, layout, torch.complex64), problem):
            estimate = replace(
                whole,
                object=torch.ones_like(whole.object, dtype=torch.complex64),
                probe=whole.probe.to(torch.complex64).clone(),
                positions=whole.positions[views],
                anchors=whole.anchors[views],
                nominal=whole.nominal[views],
                weights=whole.weights[views].to(torch.float32),
                background=whole.background.to(torch.float32),
                opr=whole.opr.to(torch.complex64),
            )
            Loop(one, RunState(estimate), [RPIE(epochs=1, batch=5)], seed=3).run()
            found.append(estimate.object)
        assert torch.equal(*found)
        assert not torch.equal(found[0], torch.ones_like(found[0]))


class Bursts:
    """Source whose answers are as long as they may be while frames wait, and counts how often it is asked."""

    def __init__(self, frames: int) -> None:
        self.frames, self.asked_at = frames, list[int]()

    def describe(self) -> StreamDescription:
        return StreamDescription((2, 2), "<u2")

    def take(self, first: int) -> Frames:
        self.asked_at.append(first)
        count = min(MOST, self.frames - first)
        return Frames(np.ones((count, 2, 2), "<u2"), np.zeros((count, 2)), first + count == self.frames)

    def close(self) -> None:
        """Nothing is open."""


def test_full_answers_are_followed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(receiving, "POLL_S", 0.001)
    source = Bursts(2 * MOST + 10)
    receiver = Receiver(source, tmp_path / "spool")
    wait = receiver._stopping.wait
    monkeypatch.setattr(receiver._stopping, "wait", lambda s=None: waits.append(len(source.asked_at)) or wait(s))
    with receiver:
        receiver._thread.join(10)
    assert receiver.ended and receiver.spool is not None and receiver.spool.count == source.frames
    assert source.asked_at == [0, MOST, 2 * MOST, source.frames] and waits == [3, 4]
