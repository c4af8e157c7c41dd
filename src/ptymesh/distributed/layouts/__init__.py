"""Layouts of the object over ranks: whole on each, in tiles, or in panels of shared memory; who owns which view."""
