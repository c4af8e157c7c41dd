"""Makes Triton's interpreter quicker.

It puts its own functions in place of the language's at every call of a kernel, and of a function within one, which
takes longer than small kernels do. Here it does so once for a process.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def put_in_place_once() -> None:
    """Where kernels are interpreted at all; nothing of this process compiles kernels then."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    put, seen = interpreter._patch_lang, set()

    def once(function: Any) -> Any:
        # what is put in place depends on what the function's module calls the language
        names = id(function.__globals__)
        if names not in seen:
            seen.add(names)
            put(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = once
