"""Data sets in, results and checkpoints out."""

from ptymesh.io.load import load_measurement

__all__ = ["load_measurement"]
