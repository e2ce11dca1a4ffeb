"""What tells whether an agent is free once it is gone, before the interpreter looks for circles."""

import gc
import weakref
from contextlib import contextmanager

from dist_classicrl.agent.agent import state_of


@contextmanager
def nobody_looking_for_circles():
    """Let the collector be off."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held_by(agent):
    """Return references to an agent, and to what it holds, that keep nothing."""
    state = state_of(agent)
    table = state.values if state.large is None else state.large.memory
    held = [agent, state, table] + ([] if state.large is None else [state.large, state.large.rows])
    return [weakref.ref(each) for each in held]
