"""Reconstruction while frames arrive: a source of frames, a spool on disk, and segments of updates over it."""

from __future__ import annotations

from ptymesh.live.frames import ApartStream, FrameSource
from ptymesh.live.handed import HandedFrames
from ptymesh.live.outcome import LiveOptions, LiveOutcome
from ptymesh.live.positions import open_positions
from ptymesh.live.session import reconstruct_live
from ptymesh.live.sources import SpooledStream, open_source
from ptymesh.live.spool import Spool

__all__ = [
    "ApartStream",
    "FrameSource",
    "HandedFrames",
    "LiveOptions",
    "LiveOutcome",
    "Spool",
    "SpooledStream",
    "open_positions",
    "open_source",
    "reconstruct_live",
]
