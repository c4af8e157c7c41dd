"""One recipe over many scans: each a run in a folder of its own, one table and one sheet of pictures of all."""

from __future__ import annotations

from ptymesh.beamtime.batch import Batch, BatchOptions
from ptymesh.beamtime.scan_run import ScanOutcome, ScanRun
from ptymesh.beamtime.table import write_table

__all__ = ["Batch", "BatchOptions", "ScanOutcome", "ScanRun", "write_table"]
