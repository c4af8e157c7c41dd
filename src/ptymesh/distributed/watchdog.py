"""Finds the rank at fault when a run stands still, and stops the others within a stated time.

Every rank posts its heartbeat to the rendezvous store, twice a second and from a thread of its own. A rank that has
made no move for longer than its phase allows reads the heartbeats of all, and blames by their counters, not by who
noticed:

    behind       ranks that entered fewer collectives than others; where all entered as many, those outside of it
    at fault     a rank behind, once it too is over the budget of *its* phase (a slow save is no fault of a batch)
    silent       a rank whose heartbeat stays the same, and whose process is stopped or gone as this machine sees it, or
                 which is on a machine that cannot be asked: at fault in any phase, which a slow rank is not
    verdict      one sentence in the store; the first one counts. Every rank reads it and ends

The sentence names the rank, the cause and the last checkpoint. A rank that raises posts its own verdict. A rank that
was itself kept from running, perhaps with all others (jobs are suspended), counts anew from there.
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
from typing import TYPE_CHECKING, Any

from ptymesh import stopping
from ptymesh.distributed.child import launched
from ptymesh.distributed.heartbeat import Heartbeat
from ptymesh.distributed.processes import fate_of
from ptymesh.errors import BadInput, Interrupted
from ptymesh.files import pid_space

if TYPE_CHECKING:
    from torch.distributed import Store

#: Seconds between two posts; that a rank which was told to stop gets to end by itself; that a heartbeat may be late;
#: after which a rank that stands still looks at the others; that rank 0 waits for the others at the end.
TICK_S, GRACE_S, SILENT_S, LOOK_S, LAST_S = 0.5, 3.0, 4.0, 5.0, 10.0
#: Seconds of silence, at least, after which a rank is at fault whose process cannot be asked for.
ELSEWHERE_S = 120.0

#: Why all may stand still, anywhere and while they join.
HANGS = "the network, the backend or a device hangs; `ptymesh doctor` tries them."
JOINING = (
    "they find no way to each other; where they compute on GPUs, name the network between machines in "
    "NCCL_SOCKET_IFNAME (NCCL_DEBUG=INFO says which one is taken). `ptymesh doctor` tries it."
)

VERDICT, AGREED, CHECKPOINT = "ptymesh/verdict", "ptymesh/agreed", "ptymesh/checkpoint"


def pulse_key(rank: int) -> str:
    """Where a rank posts its heartbeat."""
    return f"ptymesh/heartbeat/{rank}"


@dataclass(frozen=True)
class HeartbeatReport:
    """A heartbeat as posted. beat: counts posts; idle_s: since the rank's last move, by its own clock."""

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
    space: str = ""  #: within which process ids mean the same, empty where that is not known

    @property
    def place(self) -> str:
        """Where the rank is, in words."""
        doing = f"{self.where} ({self.phase})" if self.where else f"the phase '{self.phase}'"
        return f"{doing} after {self.entered} collectives"


@dataclass(frozen=True)
class Verdict:
    """Who is at fault (None: nobody in particular), a sentence about it, and the status with which ranks end.

    told: whether it is in the store, for the launcher to say it.
    """

    rank: int | None
    sentence: str
    status: int = 1
    told: bool = True

    def to_json(self) -> str:
        """The verdict as text for the store of all ranks."""
        return json.dumps(self.__dict__)

    @property
    def stopped(self) -> bool:
        """Whether nobody is at fault: a rank was told to stop, and has left."""
        return self.status == Interrupted.exit_status


def kept_by_launcher() -> bool:
    """Whether a launcher keeps the store, ours or torchrun; else rank 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def read_heartbeat(store: Store, rank: int) -> HeartbeatReport | None:
    """A rank's heartbeat as last posted, None where it has posted none."""
    key = pulse_key(rank)
    return HeartbeatReport(**json.loads(store.get(key))) if store.check([key]) else None


def read_verdict(store: Store) -> Verdict | None:
    """The verdict, None while there is none."""
    return Verdict(**json.loads(store.get(VERDICT))) if store.check([VERDICT]) else None


def accuse(store: Store, rank: int | None, what: str, status: int = 1) -> Verdict:
    """Post a verdict unless there is one; returns the one that counts. It says what there is to go on from, unless
    what the rank was given is at fault (status 2)."""
    held = "" if status == BadInput.exit_status else _go_on_from(store)
    store.compare_set(VERDICT, "", Verdict(rank, f"{what}{held}", status).to_json())
    verdict = read_verdict(store)
    assert verdict is not None
    return verdict


def _go_on_from(store: Store) -> str:
    held = store.get(CHECKPOINT).decode() if store.check([CHECKPOINT]) else "There is no checkpoint yet."
    return f" {held}"


def judge(
    posts: dict[int, HeartbeatReport | None], silent_s: dict[int, float], patience_s: float
) -> tuple[int | None, str] | None:
    """The rank at fault and what it did, None while nobody is over the budget of his phase.

    posts: of every rank; silent_s: seconds since each one's beat last changed, by the reader's clock; patience_s: the
    reader's own budget. Who has been silent for longer may have changed phase since, and is over his budget too.
    """
    if absent := [rank for rank, post in posts.items() if post is None]:
        return absent[0], f"Rank {absent[0]} has never been heard of."
    known = {rank: post for rank, post in posts.items() if post is not None}
    last = max(post.entered for post in known.values())
    behind = {rank: post for rank, post in known.items() if post.entered < last}
    if not behind:  # on a GPU nobody waits inside a collective, but for what comes out of it
        behind = {rank: post for rank, post in known.items() if not post.waiting}
        behind = behind if len(behind) < len(known) else {}
    idle = {rank: post.idle_s + silent_s[rank] for rank, post in known.items()}
    for rank, post in behind.items():
        if post.phase == "left":
            return rank, f"Rank {rank} (process {post.pid} on {post.host}) has ended while others wait for it."
    if not behind and not any(post.waiting or post.queued for post in known.values()):
        return None  # all are at work
    if not behind and all(idle[rank] > post.budget_s for rank, post in known.items()):
        stand = f"All {len(known)} ranks have stood still for {min(idle.values()):.0f} s at collective {last}"
        return None, f"{stand}: {JOINING if _joining(known) else HANGS}"
    if not behind or any(idle[r] <= post.budget_s and silent_s[r] <= patience_s for r, post in behind.items()):
        return None
    rank = min(behind, key=lambda r: (behind[r].entered, -idle[r]))
    post = behind[rank]
    did = f"made no progress for {idle[rank]:.0f} s in"
    if silent_s[rank] > SILENT_S:
        did = f"has answered nothing for {silent_s[rank]:.0f} s, last heard of in"
    return rank, f"Rank {rank} (process {post.pid} on {post.host}) {did} {post.place}; the others wait for it."


def _joining(posts: dict[int, HeartbeatReport]) -> bool:
    return all(post.phase == "join" for post in posts.values())


def stilled(
    posts: dict[int, HeartbeatReport | None], silent_s: dict[int, float], timeout_s: float, space: str
) -> tuple[int, str] | None:
    """A rank that has been silent for too long, and what is known of it, whatever its phase; None where there is none.

    timeout_s: a batch's budget; space: the reader's own. A process of this machine that is neither stopped nor gone is
    at work, however long it keeps its heartbeat from being posted.
    """
    elsewhere = "on another machine" if space else "it cannot be seen whether it lives"
    for rank, post in posts.items():
        if post is None or post.phase == "left" or silent_s[rank] <= timeout_s:
            continue
        here = bool(space) and post.space == space
        fate = fate_of(post.pid) if here else elsewhere
        if fate and (here or silent_s[rank] > ELSEWHERE_S):
            did = f"has answered nothing for {silent_s[rank]:.0f} s ({fate}), last heard of in {post.place}"
            return rank, f"Rank {rank} (process {post.pid} on {post.host}) {did}; the others wait for it."
    return None


class Watchdog(threading.Thread):
    """Posts this rank's heartbeat, and ends this process once there is a verdict.

    store: a connection of its own, for the main thread may block on another.
    """

    def __init__(self, store: Store, heartbeat: Heartbeat, rank: int, size: int) -> None:
        super().__init__(name="ptymesh-watchdog", daemon=True)
        self.store, self.heartbeat, self.rank, self.size = store, heartbeat, rank, size
        self._done, self._lock = threading.Event(), threading.Lock()
        self._seen: tuple[Any, ...] = ()
        self._since, self._beat = time.monotonic(), 0
        self._space, self._ticked = pid_space(), time.monotonic()
        self._host, self._beats = socket.gethostname(), dict.fromkeys(range(size), (-1, time.monotonic()))

    def run(self) -> None:
        """Looks after the ranks until `leave` is called."""
        while True:
            self._forgive()
            try:
                with self._lock:
                    verdict = None if self._done.is_set() else self._tick()
            except Exception as error:
                gone = self._idle() > self._budget()  # else it may still end by itself, after a checkpoint
                verdict = self._without_store(error) if gone else None
                if gone and stopping.requested():  # all ranks have been
                    verdict = Verdict(None, stopping.sentence(), Interrupted.exit_status)
            if verdict is not None and not self._done.wait(GRACE_S):
                self.end(verdict)
            self._ticked = time.monotonic()
            if self._done.wait(TICK_S):
                return

    def _forgive(self) -> None:
        """Once this process was kept from running, perhaps with all others, nobody has been idle for long."""
        now = time.monotonic()
        if now - self._ticked > SILENT_S:
            self._since = now
            self._beats = {rank: (beat, now) for rank, (beat, _) in self._beats.items()}

    @property
    def done(self) -> bool:
        """Whether `leave` was called."""
        return self._done.is_set()

    def leave(self, failed: bool = False) -> None:
        """This rank needs nobody any more; no verdict ends it from here on. `failed`: it has posted why."""
        self._done.set()
        if self.is_alive() and threading.current_thread() is not self:  # Python would abort should it end within a
            self.join(LAST_S)  # call of the store, whose C++ cannot be unwound
        stopping.forget(self.stopped)
        if not failed:
            self.heartbeat.phase = "left"
            with contextlib.suppress(Exception), self._lock:
                self._post()
                if self.rank == 0 and not kept_by_launcher():
                    self._outlast()

    def _outlast(self) -> None:
        """Rank 0 keeps the store where no launcher does: it goes last, if the others do not take long."""
        end = time.monotonic() + LAST_S
        for rank in range(1, self.size):
            while (post := read_heartbeat(self.store, rank)) and post.phase != "left" and time.monotonic() < end:
                time.sleep(TICK_S / 10)

    def _tick(self) -> Verdict | None:
        """Post, read, and where this rank stands still look at the others; early, so as to notice who is silent."""
        self._post()
        verdict, idle, budget = read_verdict(self.store), self._idle(), self._budget()
        if verdict is not None or idle < min(LOOK_S, budget / 2):
            return verdict
        posts, silent_s = self._posts()
        found = judge(posts, silent_s, budget) if idle > budget else None
        timeout = self.heartbeat.budgets_s["batch"]
        if found is None and idle > timeout and (self.heartbeat.waiting or self.heartbeat.queued):
            found = stilled(posts, silent_s, timeout, self._space)
        return accuse(self.store, *found) if found else None

    def _budget(self) -> float:
        return self.heartbeat.budgets_s.get(self.heartbeat.phase, 0.0)

    def _idle(self) -> float:
        now = (self.heartbeat.moves, self.heartbeat.entered, self.heartbeat.phase)
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since

    def _post(self) -> None:
        self._beat += 1
        heartbeat = self.heartbeat
        told = HeartbeatReport(
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
        self.store.set(pulse_key(self.rank), json.dumps(told.__dict__))

    def _posts(self) -> tuple[dict[int, HeartbeatReport | None], dict[int, float]]:
        """Pulses of all, and how long each has been the same; silence counts from the first look."""
        posts = {rank: read_heartbeat(self.store, rank) for rank in range(self.size)}
        now = time.monotonic()
        for rank, post in posts.items():
            beat = post.beat if post else 0
            if beat != self._beats[rank][0]:
                self._beats[rank] = (beat, now)
        return posts, {rank: now - since for rank, (_, since) in self._beats.items()}

    def accuse_self(self, cause: str, status: int = 1) -> None:
        """This rank failed, with this status: tell the others why."""
        where = f" in {self.heartbeat.where}" if self.heartbeat.where else ""
        with contextlib.suppress(Exception), self._lock:
            accuse(self.store, self.rank, f"Rank {self.rank} failed{where}: {cause.rstrip('.')}.", status)

    def stopped(self) -> None:
        """This rank leaves, as it was told to stop: the others need not wait for it, and nobody is at fault."""
        verdict = Verdict(None, stopping.sentence(), Interrupted.exit_status)
        if not self.done:
            with self._lock:
                self.store.compare_set(VERDICT, "", verdict.to_json())
            if self.rank == 0 and not kept_by_launcher():
                time.sleep(2 * TICK_S)  # the store goes with this process: the others must have read it

    def agree(self) -> None:
        """All ranks fail alike: rank 0 says why, and the launcher need not."""
        with contextlib.suppress(Exception), self._lock:
            self.store.set(AGREED, "")

    def tell(self, key: str, text: str) -> None:
        """Leave word in the store."""
        with self._lock:
            self.store.set(key, text)

    def wait_for(self, key: str, every_s: float) -> str:
        """What another rank left there, once it has; a verdict on that rank ends the wait with this process."""
        self.heartbeat.waiting = True
        try:
            while True:
                with self._lock:
                    if self.store.check([key]):
                        return self.store.get(key).decode()
                time.sleep(every_s)
        finally:
            self.heartbeat.waiting = False

    def explain(self) -> Verdict | None:
        """Why a collective was broken off: the verdict, or else who has fallen silent; None where nobody knows."""
        try:
            return self._explained()
        except Exception as error:
            return self._without_store(error)

    def _without_store(self, error: Exception) -> Verdict:
        """This rank reaches nobody any more."""
        said = " ".join(str(error).split())[:100]
        whose = "the launcher" if kept_by_launcher() else "rank 0"
        sentence = f"Rank {self.rank} has lost {whose}, which keeps the store of the run ({said})."
        return Verdict(0, sentence, told=False)

    def _explained(self) -> Verdict | None:
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
                what = "has ended" if post.phase == "left" else "stopped answering (killed, or its machine lost)"
                said = f"Rank {rank} (process {post.pid} on {post.host}) {what}, last heard of in {post.place}."
                with self._lock:
                    return accuse(self.store, rank, said)
        return None

    def end(self, verdict: Verdict) -> None:
        """Ends this process, whatever its main thread waits for. The launcher, if it is ours, speaks."""
        if verdict.stopped:
            stopping.leave(verdict.sentence, verdict.status)
        speaker = 1 if verdict.rank == 0 else 0
        heard = not launched() or verdict.status == BadInput.exit_status  # of which the launcher says nothing
        if not verdict.told or (heard and self.rank == speaker):
            print(f"ptymesh: {verdict.sentence}", file=sys.stderr, flush=True)
        os._exit(verdict.status)
