"""Verdict on a run at its end: whether the iteration has converged, and whether the picture can be believed.

`convergence` looks at the history alone. `floor` says what counting leaves of the residual, `misfits` collects what
the final estimate leaves of it, `signs` looks for mistakes that a fit may hide, and `judging` brings these together.
"""

from ptymesh.verdict.convergence import Convergence, Curve, judge_convergence
from ptymesh.verdict.floor import NoiseFloor, count_fitted, measure_noise_floor
from ptymesh.verdict.judging import State, Verdict, factor_in_words, judge
from ptymesh.verdict.misfits import Misfits, collect_misfits
from ptymesh.verdict.signs import Sign, signs_of_misfits, signs_of_scan

__all__ = [
    "Convergence",
    "Curve",
    "Misfits",
    "NoiseFloor",
    "Sign",
    "State",
    "Verdict",
    "collect_misfits",
    "count_fitted",
    "factor_in_words",
    "judge",
    "judge_convergence",
    "measure_noise_floor",
    "signs_of_misfits",
    "signs_of_scan",
]
