"""Admission of frames to the reconstruction: the first rank says which are there, and all ranks follow.

Which frames were there for each segment is logged (`frames` in live.jsonl), as all else follows from it: a replay with
the same admissions has the same bits, on any number of ranks.

Who asks such a run to stop, by the file in its folder, ends its stream: frames that have come are used as often as is
asked. Asked again, it stops at once, as after a signal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.live.outcome import LiveOptions
from ptymesh.live.receiving import SILENT_S, Receiver
from ptymesh.live.steering import Steering

#: Views with which the first segment begins.
FIRST = 32
#: Seconds between two looks at the spool where nothing is to be done.
POLL_S = 0.02
#: Places where positions may come from, for messages.
WHERE_POSITIONS_ARE = (
    "y and x in metres, in positions.txt in the folder, or in the dataset or the file that --positions or "
    "--positions-from names"
)


class Admission(NamedTuple):
    """Frames that a segment may use.

    Attributes:
        frames: number of frames that are there.
        ended: True if none will follow.
        ready: False while the segment has to wait for more.
        stop: True if any rank was asked to stop.
    """

    frames: int
    ended: bool
    ready: bool
    stop: bool


class Admissions:
    """Admissions of frames, segment by segment.

    Args:
        world: the ranks.
        receiver: fills the spool, on the first rank; None on the others.
        options: how long the source may be silent, and the admissions that are replayed.
        stop: asked whether this rank was asked to stop.
        say: told what happens, in lines.
        steering: requests to the run, on the first rank.
    """

    def __init__(
        self,
        world: World,
        receiver: Receiver | None,
        options: LiveOptions,
        stop: Callable[[], bool],
        say: Callable[[str], None],
        steering: Steering,
    ) -> None:
        self.world, self.receiver, self.options, self.stop, self.say = world, receiver, options, stop, say
        self.steering = steering
        self._silence_said = False
        #: Number of frames with which the stream was ended on request; None where nobody has asked.
        self._frames_at_stop: int | None = None

    def decide_frames(self, segment: int, waiting: bool) -> Admission:
        """Return the frames that a segment may use. Collective.

        Args:
            segment: number of segments done.
            waiting: True if there was nothing to do the last time.

        Raises:
            BadInput: the stream has ended without a frame.
            PtymeshError: the source does not answer, or frames cannot be kept.
        """
        count, ended, ready, failure, stop = 0, False, False, None, self.stop()
        if self.receiver is not None:
            try:
                stop |= self._take_stop_request(self.receiver)
                count, ended, ready = self._count_frames(self.receiver, segment, waiting)
            except Exception as error:
                failure = error
        word = torch.tensor([count, ended, ready, stop, failure is not None], dtype=torch.int64)
        count, *flags, failed = self.world.max(word)[0].tolist()
        if failed:
            self.world.raise_if_any_failed(failure, "receiving frames")
        return Admission(count, *map(bool, flags))

    def _take_stop_request(self, receiver: Receiver) -> bool:
        """End the stream if a stop was asked for.

        Returns:
            True if the run is to stop at once instead: the stream has ended already, or no frame has come.
        """
        if not self.steering.take_stop():
            return False
        if self._frames_at_stop is not None or receiver.ended or not receiver.count:
            return True
        receiver.stop()
        self._frames_at_stop = receiver.count
        self.say(f"Asked to stop: {self._frames_at_stop} frames have come, and no more are taken.")
        return False

    def _count_frames(self, receiver: Receiver, segment: int, waiting: bool) -> tuple[int, bool, bool]:
        """Return the number of frames, True if none will follow, and True if the segment may begin."""
        if self._frames_at_stop is not None:
            return self._frames_at_stop, True, True
        receiver.check()
        ended = receiver.ended  # before the count: no frame follows
        count = receiver.count
        planned = self.options.admissions
        if ended and not count:
            raise BadInput("The stream has ended without a single frame; check the detector.")
        if segment < len(planned):
            planned_count, then_ended = planned[segment]
            if count >= planned_count:
                return planned_count, then_ended, True
            if ended:
                raise BadInput(
                    f"Segment {segment + 1} of the run that is replayed had {planned_count} frames, and its spool "
                    f"holds {count}; give a whole folder to --from."
                )
        ready = segment >= len(planned) and (segment > 0 or ended or count >= FIRST)
        if not ended and (waiting or not ready):
            self._wait(receiver, count)
        return count, ended, ready

    def _wait(self, receiver: Receiver, count: int) -> None:
        """Wait a moment for frames, and say once if the source does not answer; count: frames so far."""
        silent, timeout, lacking = receiver.silent_s, self.options.timeout_s, receiver.lacking
        silence = "The source has not answered"
        lacking_positions = ", and others wait for their positions" if lacking else ""
        if lacking and not count:
            silence, lacking_positions = f"Frames are there, and positions ({WHERE_POSITIONS_ARE}) have not come", ""
        if silent > SILENT_S and not self._silence_said:
            self.say(f"{silence} for {SILENT_S:g} s, and waiting goes on; {count} frames so far{lacking_positions}.")
        self._silence_said = silent > SILENT_S
        if timeout is not None and silent > timeout:
            raise PtymeshError(
                f"{silence} for {silent:.0f} s (--timeout); mend that, and start this command again: the {count} "
                f"frames that have arrived are kept{lacking_positions}."
            )
        time.sleep(POLL_S)
