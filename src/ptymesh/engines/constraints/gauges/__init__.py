"""Gauges: the exact ambiguities between object, probe and positions, fixed without a change of intensities."""
