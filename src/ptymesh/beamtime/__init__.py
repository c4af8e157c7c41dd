"""One recipe over many scans: each a run in a folder of its own, one table and one sheet of pictures of all."""

from __future__ import annotations

from ptymesh.beamtime.batch import BatchOptions, ScanBatch
from ptymesh.beamtime.scan_run import ScanOutcome, ScanRun
from ptymesh.beamtime.table import write_table

__all__ = ["BatchOptions", "ScanBatch", "ScanOutcome", "ScanRun", "write_table"]
