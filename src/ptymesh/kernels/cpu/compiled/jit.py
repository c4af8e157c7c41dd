"""Options of numba for the functions in this folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numba import njit
from numba.core.dispatcher import Dispatcher

#: Sums may be reordered and multiplications joined with additions (that is what makes loops into vector code), but
#: NaN and infinity keep their meaning: counts may be NaN.
FAST = {"reassoc", "contract", "nsz", "arcp"}
#: Divisions are numpy's: by zero they give infinity, not an exception.
OPTIONS: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "nogil": True}


def parallel(function: Callable[..., None], options: dict[str, Any] = OPTIONS) -> Dispatcher:
    """Compile a function when it is first called or told to, with its outer loops shared by threads; kept on disk where
    numba finds a place to write."""
    try:
        return njit(parallel=True, cache=True, **options)(function)
    except RuntimeError:  # numba's word for: neither beside this file nor in the user's cache folder
        return njit(parallel=True, **options)(function)


#: For those whose products and sums are rounded one by one, as torch rounds them.
PLAIN: dict[str, Any] = {**OPTIONS, "fastmath": False}
#: What is called by the others alone need not be called by Python: what that takes would be compiled for each and never
#: used, an eighth of the whole.
WITHIN: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
#: Called by the others alone, and kept with them.
inlined = njit(**OPTIONS, **WITHIN)
#: Each of these, rounding one by one.
plainly_parallel = partial(parallel, options=PLAIN)
plainly_inlined = njit(**PLAIN, **WITHIN)
