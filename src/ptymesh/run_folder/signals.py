"""Signals become a flag that the loop looks at between batches, so that a run stops where it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from ptymesh import stopping
from ptymesh.run_folder.control import Control


class StopSignal:
    """Context manager: within it, a signal (stopping.SIGNALS) sets `requested`; a second Ctrl-C interrupts at once.

    The handlers that were there before come back at the end. Outside the main thread, where Python lets nobody handle
    signals, `requested` stays False. A signal that was ignored (nohup) goes on being ignored.

    Attributes:
        requested: True once a signal has come.
        control: requests by a file in the run's folder; None on all ranks but the first.
    """

    def __init__(self) -> None:
        self.requested = False
        self.control: Control | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def is_asked(self) -> bool:
        """Return True if this rank was asked to stop, by a signal or by the file in its folder."""
        return self.requested or (self.control is not None and self.control.is_stop_requested())

    def take_save(self) -> bool:
        """Return True if this rank was asked for a checkpoint since this was last called."""
        return self.control is not None and self.control.take_save()

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in stopping.SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
            stopping.interruptible(signal.SIGINT in self._previous)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous:
            stopping.interruptible(False)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (self.requested or stopping.asked_twice()):
            stopping.interruptible(False)  # the interrupt follows
            raise KeyboardInterrupt
        self.requested = True
