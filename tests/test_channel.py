"""A channel gives what is put, in its order, and waits no longer than it was asked to; stacks are read without a standstill."""

import subprocess
import sys
import threading

import pytest

from tests.harness.commands import environment
from trident.channel import Channel

pytestmark = pytest.mark.quick


@pytest.mark.timeout(60)
def test_a_wait_ends_however_short_it_is() -> None:
    box = Channel[int]()
    for number in range(20_000):
        box.put(number)
        assert box.take(1.0) == [number]
        assert box.take(1e-6 * (number % 3)) == []


def test_messages_of_many_threads_are_taken_once_each_in_the_order_of_each() -> None:
    threads, each = 4, 5_000
    box = Channel[tuple[int, int]]()

    def put(thread: int) -> None:
        for number in range(each):
            box.put((thread, number))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in range(threads):
            threading.Thread(target=put, args=(thread,)).start()
        found: list[tuple[int, int]] = []
        while len(found) < threads * each:
            taken = box.take(30.0, most=7)
            assert 1 <= len(taken) <= 7
            found += taken
    finally:
        sys.setswitchinterval(before)
    assert not box.messages
    assert sorted(found, key=lambda one: one[0]) == [
        (thread, number) for thread in range(threads) for number in range(each)
    ]


# Threads begin and end, and what is collected lets them: Python before 3.11.9 stands still if it collects amid a look.
STACKS = """
import gc, os, threading, time
from trident.channel import thread_stacks

class Garbage:
    def __init__(self): self.itself = self
    def __del__(self): time.sleep(0)

def begin_and_end():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

for _ in range(3):
    threading.Thread(target=begin_and_end, daemon=True).start()
gc.set_threshold(5, 1, 1)
for _ in range(300):
    [Garbage() for _ in range(4)]
    assert threading.get_ident() in thread_stacks()
os._exit(0)
"""


@pytest.mark.slow
def test_the_stacks_of_threads_are_read_without_a_standstill() -> None:
    subprocess.run([sys.executable, "-c", STACKS], env=environment(), timeout=60, check=True)
