"""Signals set a flag, in real processes, and the handlers come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from ptymesh.run_folder.signals import StopSignal

#: Counts batches until it is told to stop; what is printed at the end shows how it ended.
WORKER = """
import sys, time
from ptymesh.run_folder.signals import StopSignal
with StopSignal() as stop:
    print("ready", flush=True)
    try:
        for batch in range(2000):
            if stop.requested and "stubborn" not in sys.argv:
                break
            if stop.requested:
                print("noticed", flush=True)
            time.sleep(0.005)
    except KeyboardInterrupt:
        print("interrupted at once")
        sys.exit(130)
print("stopped between batches" if stop.requested else "done")
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_stops_between_batches(number: signal.Signals) -> None:
    process = start()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("stopped between batches\n", "", 0)


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    process = start("stubborn")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and process.stdout.readline() == "noticed\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert out.endswith("interrupted at once\n") and process.returncode == 130


def test_handlers_come_back_and_a_stop_can_be_used_again() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    for _ in range(2):
        with StopSignal() as stop:
            assert not stop.requested
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.requested
    assert {number: signal.getsignal(number) for number in before} == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_outside_the_main_thread_nothing_is_touched() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with StopSignal() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
