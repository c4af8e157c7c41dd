"""Verdict on a run at its end: whether the iteration has converged, and whether the picture can be believed.

`convergence` looks at the history alone. `floor` says what counting leaves of the residual, `misfits` collects what
the final estimate leaves of it, `signs` looks for mistakes that a fit may hide, and `judging` brings these together.
"""
