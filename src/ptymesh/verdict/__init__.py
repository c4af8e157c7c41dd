"""What is said of a run at its end: whether the iteration has converged, and whether the picture can be believed.

`convergence` looks at the history alone. `floor` says what counting leaves of the residual, `evidence` collects what
the final estimate leaves of it, and `judging` compares the two.
"""

from ptymesh.verdict.convergence import Convergence, Curve, judge_convergence
from ptymesh.verdict.evidence import Evidence, collect_evidence
from ptymesh.verdict.floor import NoiseFloor, count_fitted, measure_noise_floor
from ptymesh.verdict.judging import State, Verdict, factor_in_words, judge

__all__ = [
    "Convergence",
    "Curve",
    "Evidence",
    "NoiseFloor",
    "State",
    "Verdict",
    "collect_evidence",
    "count_fitted",
    "factor_in_words",
    "judge",
    "judge_convergence",
    "measure_noise_floor",
]
