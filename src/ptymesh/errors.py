"""Errors, and the exit status of each on the command line.

A message is one sentence that names the offending value and the remedy, and is shown to the user as it is.
"""


class PtymeshError(Exception):
    """Base class of errors that are reported without a traceback."""

    exit_status = 1


class BadInput(PtymeshError, ValueError):
    """Data set, recipe or argument that cannot be used; nothing has been written."""

    exit_status = 2


class Diverged(PtymeshError):
    """Divergence of a reconstruction; the last good checkpoint is kept."""

    exit_status = 3


class Poor(PtymeshError):
    """Poor or failed verdict on a result that has been written; raised only in strict mode.

    Attributes:
        result: the result, if the raising function has it.
    """

    exit_status = 4

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class Interrupted(PtymeshError):
    """Stop by a signal; the run can be resumed (or requeued), from its checkpoint or from the start."""

    exit_status = 75


def ran_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory ran out, on a device or on the host."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))
