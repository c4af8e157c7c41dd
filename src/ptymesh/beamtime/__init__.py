"""One recipe over many scans, each a run in a folder of its own; or over both halves of one scan."""

from __future__ import annotations

from ptymesh.beamtime.batch import BatchOptions, ScanBatch
from ptymesh.beamtime.scan_run import ScanOutcome, ScanRun
from ptymesh.beamtime.split_scan import SplitScan
from ptymesh.beamtime.table import write_table

__all__ = ["BatchOptions", "ScanBatch", "ScanOutcome", "ScanRun", "SplitScan", "write_table"]
