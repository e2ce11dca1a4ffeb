"""How a rank waits for the others in supersteps that are played in memory."""

from types import SimpleNamespace

from dist_classicrl.comm import transport
from dist_classicrl.engines.supersteps import part
from dist_classicrl.engines.supersteps.part import Part

SLEEPS, SUPERSTEPS = 3, 20


class LateOthers:
    """A share that waits as long in each superstep, and of whose walkers none moves."""

    def __init__(self):
        self._looked = 0

    @property
    def superstep_together(self):
        return self._looked // (part._SPINS + SLEEPS)

    def play_together(self, stream, rates, until, looks):
        self._looked += 1
        return self.superstep_together == SUPERSTEPS

    def exchanged(self):
        return 0, 0, 0.0


def test_a_wait_begins_with_the_shortest_sleep_in_every_superstep():
    """Else who has no walkers yet sleeps for 2 ms in each superstep, and all others wait for that."""
    slept = []
    waiting = SimpleNamespace(
        group=SimpleNamespace(wire=SimpleNamespace(sleep=slept.append)),
        _share=LateOthers(),
        stream=None,
        rates=None,
        _tend=lambda tend: None,
    )
    assert Part._play_in_memory(waiting, 1, lambda: None) == (0, 0, 0.0)
    assert len(slept) >= (SLEEPS - 1) * SUPERSTEPS
    assert max(slept) <= transport._FIRST_SLEEP * 2**SLEEPS
