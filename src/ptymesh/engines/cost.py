"""Declarations of an engine: the work, the messages and the memory of its steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineCost:
    """Work that an engine spends, in units of rPIE's: CPU times on one thread that `benchmarks/prices.py` measures.

    Attributes:
        per_pixel: for one pixel of one view with one wave.
        per_further_wave: share of `per_pixel` that each further wave adds.
        per_batch: fixed work of one batch, in batches of rPIE.
        per_object_pixel: for one object pixel in the step of a batch.
        per_epoch: for one object pixel between epochs.
        whole: True if a step goes over all pixels of the object, False for the blocks that the batch touches.
    """

    per_pixel: float
    per_further_wave: float = 0.75
    per_batch: float = 1.0
    per_object_pixel: float = 0.3
    per_epoch: float = 0.5
    whole: bool = False


@dataclass(frozen=True)
class StepNeeds:
    """Messages to other ranks and memory that the step of a batch needs.

    Attributes:
        sums: sums over the views of the batch.
        object_sums: number of these that have the object's shape.
        probe_sums: number of these that have the probe's shape.
        parts: parts of each number of a sum in single precision.
        maxima: maxima of touched fields, which tiles compare.
        inner_products: inner products over tiles.
        inner_product_rounds: how often inner products are asked for, in two messages each.
        numbers: numbers that are summed along with the other sums.
        later_numbers: numbers that are summed after them.
        doubles_per_view: doubles of each view that are summed.
        object_arrays: arrays of the object's size and precision that the engine keeps or needs on the way.
        waves_per_view: exit waves (of all modes) of each own view that it keeps.
        waves_per_batch_view: exit waves of each own view of a batch that it keeps during the step.
    """

    sums: int = 1
    object_sums: int = 1
    probe_sums: int = 1
    parts: int = 1
    maxima: int = 1
    inner_products: int = 0
    inner_product_rounds: int = 0
    numbers: int = 0
    later_numbers: int = 0
    doubles_per_view: int = 0
    object_arrays: float = 0.0
    waves_per_view: int = 0
    waves_per_batch_view: int = 0
