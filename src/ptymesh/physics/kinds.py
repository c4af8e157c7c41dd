"""Kinds of sums over views: places of their steps (rounding.py). Compilers of kernels read this without torch."""

OBJECT, OBJECT_WEIGHT, PROBE, PROBE_WEIGHT, OPR, OPR_WEIGHT = range(6)
SUMS = 6
