"""Agreement of two reconstructions after the ambiguities of ptychography have been removed."""

from ptymesh.compare.align import Alignment, align, object_error, twin
from ptymesh.compare.comparison import Comparison, compare_results
from ptymesh.compare.moves import Moves, moves_apart, moves_of_result
from ptymesh.compare.region import illuminated, illumination, illumination_of_result
from ptymesh.compare.rings import RingCorrelation, ring_correlation
from ptymesh.compare.similarity import phase_similarity
from ptymesh.compare.spectrum import PowerSpectrum, power_spectrum

__all__ = [
    "Alignment",
    "Comparison",
    "Moves",
    "PowerSpectrum",
    "RingCorrelation",
    "align",
    "compare_results",
    "illuminated",
    "illumination",
    "illumination_of_result",
    "moves_apart",
    "moves_of_result",
    "object_error",
    "phase_similarity",
    "power_spectrum",
    "ring_correlation",
    "twin",
]
