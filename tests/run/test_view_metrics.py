"""Notes of views: written together, read as if each had been written at once."""

import torch

from ptymesh.problem import view_metrics
from ptymesh.problem.view_metrics import COLUMNS, ViewMetrics


def test_notes_are_there_when_they_are_read() -> None:
    notes, wanted = ViewMetrics(9, torch.device("cpu")), torch.zeros(9, COLUMNS, dtype=torch.float64)
    rng = torch.Generator().manual_seed(1)
    for _ in range(2 * view_metrics.WAITING + 3):
        rows, found = torch.randperm(9, generator=rng)[:4], torch.rand(4, 6, generator=rng, dtype=torch.float64)
        notes.record(rows, found)
        wanted[rows] = found[:, :COLUMNS]
        assert len(notes._waiting) < view_metrics.WAITING
    assert notes._waiting and torch.equal(notes.values, wanted) and not notes._waiting


def test_what_is_written_over_all_notes_is_all_there_is() -> None:
    notes, found = ViewMetrics(3, torch.device("cpu")), torch.ones(3, 6, dtype=torch.float64)
    notes.record(torch.arange(3), found)
    notes.values.zero_()
    assert not notes.values.any()
    notes.record(torch.arange(3), found)
    notes.values = torch.full((2, COLUMNS), 7.0, dtype=torch.float64)
    assert torch.equal(notes.values, torch.full((2, COLUMNS), 7.0, dtype=torch.float64))
