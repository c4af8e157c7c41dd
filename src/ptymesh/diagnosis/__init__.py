"""Causes of a poor result, each with its evidence and what would help (`ptymesh diagnose`)."""

from __future__ import annotations

from ptymesh.diagnosis.causes import CAUSES
from ptymesh.diagnosis.evidence import Cause, Evidence, Finding, Remedy
from ptymesh.diagnosis.view import ResultView

__all__ = ["CAUSES", "Cause", "Evidence", "Finding", "Remedy", "ResultView"]
