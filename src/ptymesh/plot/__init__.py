"""Figures: plain arrays in, matplotlib figures out. Independent of ranks and recipes.

figure = plot.object_figure(result.object, result.pixel_size_m)
figure.savefig("object.png")
"""

from ptymesh.physics.phase import unwrapped_phase, without_ramp
from ptymesh.plot.caustic import caustic_figure
from ptymesh.plot.comparison import comparison_figure, resolution_figure
from ptymesh.plot.objects import field_figure, object_figure, slices_figure
from ptymesh.plot.overview import overview_figure
from ptymesh.plot.patterns import mean_pattern_figure, patterns_figure
from ptymesh.plot.probes import powers_percent, probe_figure, pupil_figure
from ptymesh.plot.progress import history_figure
from ptymesh.plot.saving import save_figure
from ptymesh.plot.scaling import scaling_figure
from ptymesh.plot.scan import coverage_figure, moves_figure, positions_figure, view_vectors_figure
from ptymesh.plot.sections import Sections, sections_figure, sections_of
from ptymesh.plot.spectrum import spectrum_figure
from ptymesh.plot.tiff import object_tiffs, probe_tiffs, save_tiff

__all__ = [
    "Sections",
    "caustic_figure",
    "comparison_figure",
    "coverage_figure",
    "field_figure",
    "history_figure",
    "mean_pattern_figure",
    "moves_figure",
    "object_figure",
    "object_tiffs",
    "overview_figure",
    "patterns_figure",
    "positions_figure",
    "powers_percent",
    "probe_figure",
    "probe_tiffs",
    "pupil_figure",
    "resolution_figure",
    "save_figure",
    "save_tiff",
    "scaling_figure",
    "sections_figure",
    "sections_of",
    "slices_figure",
    "spectrum_figure",
    "unwrapped_phase",
    "view_vectors_figure",
    "without_ramp",
]
