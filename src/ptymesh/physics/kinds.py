"""Indices of the kinds of sums over views, by which rounding steps are kept (rounding.py).

Compilers of kernels read this module without torch.
"""

OBJECT, OBJECT_WEIGHT, PROBE, PROBE_WEIGHT, OPR, OPR_WEIGHT = range(6)
SUMS = 6
