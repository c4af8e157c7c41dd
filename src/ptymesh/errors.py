"""What can go wrong, and the exit status each carries on the command line.

Messages are one sentence that names the offending value and the remedy: they are shown to the user as they stand.
"""


class PtymeshError(Exception):
    """Anything that ptymesh reports without a traceback."""

    exit_status = 1


class BadInput(PtymeshError, ValueError):
    """A data set, recipe or argument that cannot be used; nothing has been written."""

    exit_status = 2


class Diverged(PtymeshError):
    """The reconstruction left the numbers; the last good checkpoint was kept."""

    exit_status = 3


class Poor(PtymeshError):
    """The result is written, and its verdict is poor or failed; raised only where that was asked for (strict).

    Attributes:
        result: the result, where the program has it at hand.
    """

    exit_status = 4

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class Interrupted(PtymeshError):
    """Stopped by a signal; the run can be resumed (or requeued), from its checkpoint or from the start."""

    exit_status = 75


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory ran out, on a device or on the host."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))
