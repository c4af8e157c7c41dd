"""Detection of the rank at fault when a run hangs; it ends the other ranks within a stated time.

A thread of every rank posts the rank's heartbeat to the rendezvous store, twice a second. A rank that has made no move
for longer than its phase allows reads the heartbeats of all, and judges by their counters, not by who noticed:

    behind       ranks that entered fewer collectives than others; where all entered as many, those outside of it
    at fault     a rank behind, once it too is over the budget of *its* phase (a slow save is no fault of a batch)
    silent       a rank whose heartbeat does not change, and whose process is stopped or gone as this machine sees it,
                 or which runs on a machine that cannot be inspected: at fault in any phase, unlike a slow rank
    verdict      one sentence in the store; the first one counts. Every rank reads it and ends

The sentence names the rank, the cause and the last checkpoint. A rank that raises posts its own verdict. A rank that
was itself kept from running, perhaps with all others (suspended jobs), restarts its timers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptymesh import stopping
from ptymesh.distributed.child import launched
from ptymesh.distributed.heartbeat import Heartbeat
from ptymesh.distributed.processes import fate_of
from ptymesh.errors import BadInput, Interrupted
from ptymesh.files import pid_space

if TYPE_CHECKING:
    from torch.distributed import Store

#: Seconds between two posts; between a verdict and the end of the process, which may end by itself meanwhile; after
#: which a heartbeat that has not changed is silent; after which an idle rank reads the others' heartbeats; that rank 0
#: waits for the others at the end.
TICK_S, GRACE_S, SILENT_S, LOOK_S, LAST_S = 0.5, 3.0, 4.0, 5.0, 10.0
#: Least seconds of silence after which a rank is at fault whose process cannot be inspected.
ELSEWHERE_S = 120.0

#: Remedies where all ranks hang: in general, and while they join.
HANGS = "the network, the backend or a device hangs; `ptymesh doctor` tries them."
JOINING = (
    "they find no way to each other; where they compute on GPUs, name the network between machines in "
    "NCCL_SOCKET_IFNAME (NCCL_DEBUG=INFO says which one is taken). `ptymesh doctor` tries it."
)

VERDICT, AGREED, CHECKPOINT = "ptymesh/verdict", "ptymesh/agreed", "ptymesh/checkpoint"


def pulse_key(rank: int) -> str:
    """Return the store's key for a rank's heartbeat."""
    return f"ptymesh/heartbeat/{rank}"


@dataclass(frozen=True)
class HeartbeatReport:
    """Heartbeat as posted to the store.

    Attributes:
        phase, where, entered, waiting, queued: as in `Heartbeat`.
        idle_s: seconds since the rank's last move, by its own clock.
        budget_s: longest time without a move in its phase.
        beat: number of the post.
        host, pid: machine and process id.
        space: pid namespace within which process ids are comparable; empty where unknown.
    """

    phase: str
    where: str
    entered: int
    waiting: bool
    queued: bool
    idle_s: float
    budget_s: float
    beat: int
    host: str
    pid: int
    space: str = ""

    @property
    def place(self) -> str:
        """Position of the rank in the run, in words."""
        doing = f"{self.where} ({self.phase})" if self.where else f"the phase '{self.phase}'"
        return f"{doing} after {self.entered} collectives"


@dataclass(frozen=True)
class FailureVerdict:
    """Rank at fault and the sentence about it.

    Attributes:
        rank: at fault; None if no rank in particular is.
        sentence: for the user.
        status: exit status with which all ranks end.
        is_posted: True if it is in the store, so that the launcher prints it.
    """

    rank: int | None
    sentence: str
    status: int = 1
    is_posted: bool = True

    def to_json(self) -> str:
        """Return the verdict as text for the store."""
        return json.dumps(self.__dict__)

    @property
    def stopped(self) -> bool:
        """True if no rank is at fault: one was stopped by a signal, and has left."""
        return self.status == Interrupted.exit_status


def kept_by_launcher() -> bool:
    """Return True if a launcher (ours or torchrun) serves the store, False if rank 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def read_heartbeat(store: Store, rank: int) -> HeartbeatReport | None:
    """Return a rank's heartbeat as last posted; None if it has posted none."""
    key = pulse_key(rank)
    return HeartbeatReport(**json.loads(store.get(key))) if store.check([key]) else None


def read_verdict(store: Store) -> FailureVerdict | None:
    """Return the verdict; None while there is none."""
    return FailureVerdict(**json.loads(store.get(VERDICT))) if store.check([VERDICT]) else None


def post_verdict(store: Store, rank: int | None, sentence: str, status: int = 1) -> FailureVerdict:
    """Post a verdict unless there is one.

    The sentence also names the last checkpoint, unless the input was at fault (status 2).

    Args:
        store: of all ranks.
        rank: at fault; None if no rank in particular is.
        sentence: sentence about the fault.
        status: exit status of all ranks.

    Returns:
        The verdict that counts, which may be an earlier one.
    """
    advice = "" if status == BadInput.exit_status else _go_on_from(store)
    store.compare_set(VERDICT, "", FailureVerdict(rank, f"{sentence}{advice}", status).to_json())
    verdict = read_verdict(store)
    assert verdict is not None
    return verdict


def _go_on_from(store: Store) -> str:
    """Return a sentence about the last checkpoint."""
    checkpoint = store.get(CHECKPOINT).decode() if store.check([CHECKPOINT]) else "There is no checkpoint yet."
    return f" {checkpoint}"


def find_rank_at_fault(
    posts: dict[int, HeartbeatReport | None], silent_s: dict[int, float], patience_s: float
) -> tuple[int | None, str] | None:
    """Return the rank at fault and a sentence about it.

    A rank that has been silent for longer than `patience_s` may have changed its phase since, and counts as over its
    budget too.

    Args:
        posts: heartbeat of every rank; None where it has posted none.
        silent_s: seconds since each rank's heartbeat last changed, by the reader's clock.
        patience_s: budget of the reader's own phase.

    Returns:
        Rank (None where all hang) and sentence; None while no rank is over the budget of its phase.
    """
    if absent := [rank for rank, post in posts.items() if post is None]:
        return absent[0], f"Rank {absent[0]} has never been heard of."
    answered = {rank: post for rank, post in posts.items() if post is not None}
    last = max(post.entered for post in answered.values())
    late_posts = {rank: post for rank, post in answered.items() if post.entered < last}
    if not late_posts:  # on a GPU ranks wait outside of the collective, for its result
        late_posts = {rank: post for rank, post in answered.items() if not post.waiting}
        late_posts = late_posts if len(late_posts) < len(answered) else {}
    idle = {rank: post.idle_s + silent_s[rank] for rank, post in answered.items()}
    for rank, post in late_posts.items():
        if post.phase == "left":
            return rank, f"Rank {rank} (process {post.pid} on {post.host}) has ended while others wait for it."
    if not late_posts and not any(post.waiting or post.queued for post in answered.values()):
        return None  # all are computing
    if not late_posts and all(idle[rank] > post.budget_s for rank, post in answered.items()):
        stand = f"All {len(answered)} ranks have stood still for {min(idle.values()):.0f} s at collective {last}"
        return None, f"{stand}: {JOINING if _joining(answered) else HANGS}"
    if not late_posts or any(idle[r] <= post.budget_s and silent_s[r] <= patience_s for r, post in late_posts.items()):
        return None
    rank = min(late_posts, key=lambda r: (late_posts[r].entered, -idle[r]))
    post = late_posts[rank]
    did = f"made no progress for {idle[rank]:.0f} s in"
    if silent_s[rank] > SILENT_S:
        did = f"has answered nothing for {silent_s[rank]:.0f} s, last heard of in"
    return rank, f"Rank {rank} (process {post.pid} on {post.host}) {did} {post.place}; the others wait for it."


def _joining(posts: dict[int, HeartbeatReport]) -> bool:
    return all(post.phase == "join" for post in posts.values())


def stilled(
    posts: dict[int, HeartbeatReport | None], silent_s: dict[int, float], timeout_s: float, space: str
) -> tuple[int, str] | None:
    """Return a rank that has been silent for too long, whatever its phase, and a sentence about it.

    A process of this machine that is neither stopped nor gone is at work, however long its heartbeat is delayed.

    Args:
        posts: heartbeat of every rank; None where it has posted none.
        silent_s: seconds since each rank's heartbeat last changed, by the reader's clock.
        timeout_s: budget of a batch.
        space: the reader's own pid namespace.

    Returns:
        Rank and sentence; None where no rank is at fault.
    """
    elsewhere = "on another machine" if space else "it cannot be seen whether it lives"
    for rank, post in posts.items():
        if post is None or post.phase == "left" or silent_s[rank] <= timeout_s:
            continue
        is_local = bool(space) and post.space == space
        fate = fate_of(post.pid) if is_local else elsewhere
        if fate and (is_local or silent_s[rank] > ELSEWHERE_S):
            did = f"has answered nothing for {silent_s[rank]:.0f} s ({fate}), last heard of in {post.place}"
            return rank, f"Rank {rank} (process {post.pid} on {post.host}) {did}; the others wait for it."
    return None


class Watchdog(threading.Thread):
    """Thread that posts this rank's heartbeat, and ends this process once there is a verdict.

    Args:
        store: a separate connection to the store, as the main thread may block on another.
        heartbeat: progress of this rank.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, store: Store, heartbeat: Heartbeat, rank: int, size: int) -> None:
        super().__init__(name="ptymesh-watchdog", daemon=True)
        self.store, self.heartbeat, self.rank, self.size = store, heartbeat, rank, size
        self._done, self._lock = threading.Event(), threading.Lock()
        self._seen: tuple[object, ...] = ()
        self._since, self._beat = time.monotonic(), 0
        self._space, self._ticked = pid_space(), time.monotonic()
        self._host, self._beats = socket.gethostname(), dict.fromkeys(range(size), (-1, time.monotonic()))

    def run(self) -> None:
        """Post and check heartbeats until `leave` is called."""
        while True:
            self._restart_timers()
            try:
                with self._lock:
                    verdict = None if self._done.is_set() else self._tick()
            except Exception as error:
                gone = self._idle() > self._budget()  # else this rank may still end by itself, after a checkpoint
                verdict = self._blame_lost_store(error) if gone else None
                if gone and stopping.requested():  # a signal to all ranks: no failure
                    verdict = FailureVerdict(None, stopping.sentence(), Interrupted.exit_status)
            if verdict is not None and not self._done.wait(GRACE_S):
                self.end(verdict)
            self._ticked = time.monotonic()
            if self._done.wait(TICK_S):
                return

    def _restart_timers(self) -> None:
        """Restart all timers if this process was kept from running, perhaps together with all others."""
        now = time.monotonic()
        if now - self._ticked > SILENT_S:
            self._since = now
            self._beats = {rank: (beat, now) for rank, (beat, _) in self._beats.items()}

    @property
    def done(self) -> bool:
        """True once `leave` was called."""
        return self._done.is_set()

    def leave(self, failed: bool = False) -> None:
        """Stop watching: this rank needs no other rank any more, and no verdict ends it.

        Args:
            failed: True if this rank failed and has posted a verdict.
        """
        self._done.set()
        # Python aborts if it ends while this thread is inside the store's C++ code, which cannot be unwound
        if self.is_alive() and threading.current_thread() is not self:
            self.join(LAST_S)
        stopping.remove_clean_up(self.stopped)
        if not failed:
            self.heartbeat.phase = "left"
            with contextlib.suppress(Exception), self._lock:
                self._post()
                if self.rank == 0 and not kept_by_launcher():
                    self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Wait on rank 0, where it serves the store, until the other ranks have left, for a bounded time."""
        end = time.monotonic() + LAST_S
        for rank in range(1, self.size):
            while (post := read_heartbeat(self.store, rank)) and post.phase != "left" and time.monotonic() < end:
                time.sleep(TICK_S / 10)

    def _tick(self) -> FailureVerdict | None:
        """Post the heartbeat and return the verdict, after judging the others if this rank has been idle for too long.

        An idle rank reads the others' heartbeats well before its budget ends, to see which of them are silent.
        """
        self._post()
        verdict, idle, budget = read_verdict(self.store), self._idle(), self._budget()
        if verdict is not None or idle < min(LOOK_S, budget / 2):
            return verdict
        posts, silent_s = self._posts()
        fault = find_rank_at_fault(posts, silent_s, budget) if idle > budget else None
        timeout = self.heartbeat.budgets_s["batch"]
        if fault is None and idle > timeout and (self.heartbeat.waiting or self.heartbeat.queued):
            fault = stilled(posts, silent_s, timeout, self._space)
        return post_verdict(self.store, *fault) if fault else None

    def _budget(self) -> float:
        return self.heartbeat.budgets_s.get(self.heartbeat.phase, 0.0)

    def _idle(self) -> float:
        """Return the seconds since the last move of this rank."""
        now = (self.heartbeat.moves, self.heartbeat.entered, self.heartbeat.phase)
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since

    def _post(self) -> None:
        self._beat += 1
        heartbeat = self.heartbeat
        report = HeartbeatReport(
            heartbeat.phase,
            heartbeat.where,
            heartbeat.entered,
            heartbeat.waiting,
            heartbeat.queued,
            self._idle(),
            self._budget(),
            self._beat,
            self._host,
            os.getpid(),
            self._space,
        )
        self.store.set(pulse_key(self.rank), json.dumps(report.__dict__))

    def _posts(self) -> tuple[dict[int, HeartbeatReport | None], dict[int, float]]:
        """Return the heartbeats of all ranks, and the seconds since this rank last saw each of them change."""
        posts = {rank: read_heartbeat(self.store, rank) for rank in range(self.size)}
        now = time.monotonic()
        for rank, post in posts.items():
            beat = post.beat if post else 0
            if beat != self._beats[rank][0]:
                self._beats[rank] = (beat, now)
        return posts, {rank: now - since for rank, (_, since) in self._beats.items()}

    def post_own_failure(self, cause: str, status: int = 1) -> None:
        """Post the verdict that this rank failed, and why.

        Args:
            cause: in words.
            status: exit status of all ranks.
        """
        place = f" in {self.heartbeat.where}" if self.heartbeat.where else ""
        with contextlib.suppress(Exception), self._lock:
            post_verdict(self.store, self.rank, f"Rank {self.rank} failed{place}: {cause.rstrip('.')}.", status)

    def stopped(self) -> None:
        """Post the verdict that ranks were stopped by a signal, so that the others need not wait for this one."""
        verdict = FailureVerdict(None, stopping.sentence(), Interrupted.exit_status)
        if not self.done:
            with self._lock:
                self.store.compare_set(VERDICT, "", verdict.to_json())
            if self.rank == 0 and not kept_by_launcher():
                time.sleep(2 * TICK_S)  # the store ends with this process: the others must have read the verdict

    def agree(self) -> None:
        """Post that all ranks fail with the same error, which rank 0 reports, so that the launcher need not."""
        with contextlib.suppress(Exception), self._lock:
            self.store.set(AGREED, "")

    def set_key(self, key: str, text: str) -> None:
        """Set a key of the store."""
        with self._lock:
            self.store.set(key, text)

    def wait_for(self, key: str, every_s: float) -> str:
        """Wait until another rank has set a key of the store, and return its text.

        A verdict on that rank ends this process meanwhile.

        Args:
            key: of the store.
            every_s: seconds between two polls.
        """
        self.heartbeat.waiting = True
        try:
            while True:
                with self._lock:
                    if self.store.check([key]):
                        return self.store.get(key).decode()
                time.sleep(every_s)
        finally:
            self.heartbeat.waiting = False

    def explain(self) -> FailureVerdict | None:
        """Return why a collective was broken off: the verdict, or the rank that fell silent; None where unknown."""
        try:
            return self._explained()
        except Exception as error:
            return self._blame_lost_store(error)

    def _blame_lost_store(self, error: Exception) -> FailureVerdict:
        """Return the verdict that this rank has lost the store, and with it the other ranks."""
        message = " ".join(str(error).split())[:100]
        whose = "the launcher" if kept_by_launcher() else "rank 0"
        sentence = f"Rank {self.rank} has lost {whose}, which keeps the store of the run ({message})."
        return FailureVerdict(0, sentence, is_posted=False)

    def _explained(self) -> FailureVerdict | None:
        """Wait some seconds for a verdict; without one, post a verdict on a rank that fell silent meanwhile."""
        end = time.monotonic() + SILENT_S
        while time.monotonic() < end:
            with self._lock:
                verdict = read_verdict(self.store)
                posts, silent_s = self._posts()
            if verdict:
                return verdict
            time.sleep(TICK_S / 2)
        for rank, post in posts.items():
            if rank != self.rank and post and silent_s[rank] > 4 * TICK_S:
                event = "has ended" if post.phase == "left" else "stopped answering (killed, or its machine lost)"
                sentence = f"Rank {rank} (process {post.pid} on {post.host}) {event}, last heard of in {post.place}."
                with self._lock:
                    return post_verdict(self.store, rank, sentence)
        return None

    def end(self, verdict: FailureVerdict) -> None:
        """End this process, whatever its main thread waits for.

        One rank prints the sentence, unless our own launcher does.
        """
        if verdict.stopped:
            stopping.leave(verdict.sentence, verdict.status)
        speaker = 1 if verdict.rank == 0 else 0
        heard = not launched() or verdict.status == BadInput.exit_status  # the launcher does not print these
        if not verdict.is_posted or (heard and self.rank == speaker):
            print(f"ptymesh: {verdict.sentence}", file=sys.stderr, flush=True)
        os._exit(verdict.status)
