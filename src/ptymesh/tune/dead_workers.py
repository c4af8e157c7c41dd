"""Trials whose worker has died: how that is seen, and how such a trial ends.

A database has the heartbeats of Optuna's RDB storage. A journal has none; there each worker holds one lease, a file in
the study's folder that it touches every `heartbeat_s` seconds. Whoever can take the lease knows that its worker is
dead: on the same machine as soon as the process is gone, on another one after SILENT intervals without a touch.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, TrialState

from ptymesh.distributed.lease import Lease
from ptymesh.tune.offered import quiet
from ptymesh.tune.places import WORKER

#: Intervals of silence after which a worker elsewhere counts as dead.
SILENT = 6
#: Folder of the leases, in the study's.
LEASES = "workers"


class WorkerLease(Lease):
    """The lease that a worker of a journal holds while it works.

    Args:
        folder: of the study.
        heartbeat_s: seconds between two signs of life.
    """

    def __init__(self, folder: Path, heartbeat_s: float) -> None:
        name = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.lease"
        (folder / LEASES).mkdir(parents=True, exist_ok=True)
        self.notes = {"lease": name, "silent_s": SILENT * heartbeat_s}
        super().__init__(folder / LEASES / name, heartbeat_s, SILENT * heartbeat_s)

    def hold(self) -> None:
        """Take the lease, or take it again where this worker stood still for so long that others thought it dead."""
        if self.state() != "held":
            self.release()
            self.acquire()


class DeadWorkers:
    """Ends the trials of workers that have died, as FAIL.

    Args:
        study: with its storage.
        folder: of the study.
        heartbeat_s: seconds between two signs of life of a worker.
    """

    def __init__(self, study: Study, folder: Path, heartbeat_s: float) -> None:
        self._study, self._folder, self._silent_s = study, folder, SILENT * heartbeat_s
        self._leases: dict[str, Lease] = {}
        #: Running trials that nobody has signed yet: when they were first seen.
        self._unsigned: dict[int, float] = {}

    def fail_trials(self) -> None:
        """End the trials of dead workers."""
        with quiet():
            fail_stale_trials(self._study)  # of a database; nothing on a journal
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self._is_dead(trial):
                with suppress(UpdateFinishedTrialError):  # it ended by itself, or another worker was quicker
                    self._study._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)

    def _is_dead(self, trial: FrozenTrial) -> bool:
        worker: dict[str, Any] | None = trial.user_attrs.get(WORKER)
        if worker is None:  # taken a moment ago, or by a worker that died at once
            since = self._unsigned.setdefault(trial.number, time.monotonic())
            return time.monotonic() - since > self._silent_s
        return "lease" in worker and self._is_free(worker["lease"], worker["silent_s"])

    def _is_free(self, name: str, silent_s: float) -> bool:
        """Return True if a worker's lease can be taken; it is then gone."""
        path = self._folder / LEASES / Path(name).name
        lease = self._leases.setdefault(name, Lease(path, silent_s / SILENT, silent_s))
        if not lease.try_acquire():
            return False
        lease.release()
        return True
