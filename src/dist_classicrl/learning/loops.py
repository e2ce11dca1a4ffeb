"""The training loops: jitted, over plain arrays that the caller owns.

What a loop does depends on the stream and the position in it, not on how a stretch of steps is cut into
calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note
from dist_classicrl.learning.behavior import choose, choose_legal
from dist_classicrl.learning.replay import learn_again
from dist_classicrl.learning.rules.kernel import Learned, Now, Transition, learn, on_action
from dist_classicrl.tables.rows import actions_of

DRAWS_PER_STEP = 3
STEP_STRIDE = np.uint64(DRAWS_PER_STEP * int(GAMMA) % 2**64)
TWICE_GAMMA = np.uint64(2 * int(GAMMA) % 2**64)


class Line(NamedTuple):
    """A number that follows a straight line: ``value + slope * (at + i)`` at step i of a call."""

    value: float
    slope: float
    at: int


class Stretch(NamedTuple):
    """What one call of a loop does."""

    key: np.uint64  # the random stream
    offset: int  # steps that this stream has served before
    steps: int
    step_size: Line  # where it does not depend on visits
    epsilon: Line  # the chance of a uniformly random action


NO_LINE = Line(0.0, 0.0, 0)
NO_STEPS = Stretch(np.uint64(0), 0, 0, NO_LINE, NO_LINE)


class Walker(NamedTuple):
    """One episode under way in a compiled environment."""

    number: int  # its row in the rule's memory
    memory: np.ndarray  # int64: hidden state of a game
    #: The state, -1 before the first episode, and the steps of the episode: int64, shape (2,), written.
    position: np.ndarray
    #: Its undiscounted return so far, NaN or infinite once a reward was: float64, shape (1,), written.
    collected: np.ndarray
    time_limit: int  # steps after which an episode is truncated
    came: np.ndarray  # int64, shape (3,), written: what was wrong, see `note`


class Batch(NamedTuple):
    """Transitions of stepped environments, B of them: each array has the shape (B,)."""

    walkers: np.ndarray  # int64, as the next three; a walker is an environment of the batch
    states: np.ndarray
    actions: np.ndarray
    next_states: np.ndarray
    rewards: np.ndarray  # float64
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool; these bootstrap from their next state


@jit_inline
def on_line(line, i):
    """Return the number at step `i` of a call."""
    return line.value + (line.at + i) * line.slope


@jit
def learn_steps(rule, simulation, walker, context, replay, stretch, totals):
    """Act, simulate and learn for a stretch of steps in one loop.

    `rule` has the hyper-parameters, see `dist_classicrl.learning.rules.kernel`; for `simulation` see
    `dist_classicrl.environments.simulate`, for `walker`, `context`, `replay` (which may be None) and
    `stretch` the classes of these names. What `Totals` counts is added to `totals`, float64 of shape (4,).
    Return whether a game gave what cannot be learned from: then the walker's `came` tells it, and `collected`
    is the reward.
    """
    table, memory, position = context.table, walker.memory, walker.position
    n_actions = actions_of(table)
    counter = stretch.key + np.uint64(stretch.offset) * STEP_STRIDE
    state = position[0]
    elapsed = position[1]
    collected = walker.collected[0]
    learned = Learned(table.n_touched[0], totals[3])
    came = walker.came
    is_bad = False
    if state < 0:
        note(simulation, came, -1, -1)
        state = np.int64(begin(simulation, memory, mix(~counter)))
        if is_wrong(simulation, state, 0.0, table.n_states):
            came[0], came[1], came[2] = -1, -1, state
            is_bad = True
    for i in range(0 if is_bad else stretch.steps):
        random = mix(counter)
        now = Now(
            on_line(stretch.step_size, i), on_line(stretch.epsilon, i), random ^ GAMMA, walker.number, 1
        )
        action = choose(context.behavior, rule, context, state, now.epsilon, random)
        learned = on_action(rule, context, now, state, action, learned)
        note(simulation, came, state, action)
        next_state, reward, terminated = advance(
            simulation, memory, state, action, mix(counter + GAMMA), n_actions
        )
        if is_wrong(simulation, np.int64(next_state), reward, table.n_states):
            came[0], came[1], came[2] = state, action, np.int64(next_state)
            collected = np.float64(reward)
            is_bad = True
            break
        collected += reward
        elapsed += 1
        has_ended = terminated or elapsed >= walker.time_limit
        step = Transition(
            state, action, reward, np.int64(next_state), terminated, has_ended and not terminated, 0
        )
        learned = learn(rule, context, now, step, learned)
        learned = learn_again(rule, replay, state * n_actions + action, step, None, now, ~random, learned)
        state = step.next_state
        if has_ended:
            totals[0] += 1.0
            totals[1] += collected
            totals[2] += elapsed
            if abs(collected) < np.inf:  # else it stays, for the caller to see
                collected = 0.0
            elapsed = 0
            note(simulation, came, -1, -1)
            state = np.int64(begin(simulation, memory, mix(counter + TWICE_GAMMA)))
            if is_wrong(simulation, state, 0.0, table.n_states):
                came[0], came[1], came[2] = -1, -1, state
                is_bad = True
                break
        counter += STEP_STRIDE
    position[0] = -1 if is_bad else state
    position[1] = elapsed
    walker.collected[0] = collected
    table.n_touched[0] = learned.touched
    totals[3] = learned.error
    return is_bad


@jit
def choose_actions(rule, context, states, masks, epsilon, key, offset, actions):
    """Fill `actions`, ndarray(int64) of shape (B,), for a batch of B environments.

    `states` is likewise; `masks`, None or bool of shape (B, A), allows at least one action in each row. The
    random stream `key` has served `offset` draws before; B more are used.
    """
    counter = key + np.uint64(offset) * GAMMA
    for i in range(states.size):
        actions[i] = choose_legal(rule, context, states[i], masks, i, epsilon, mix(counter))
        counter += GAMMA


@jit
def learn_batch(rule, batch, first, context, replay, stretch, totals):
    """Learn as many transitions of a batch as the stretch has steps, one after the other, from `first` on.

    The masks of `context` are the legal actions of the next states; `replay`, or None, has masks where it
    has. The random stream of `stretch` is that of replay and of rules that draw. The sum of the absolute
    temporal differences is added to the last of `totals`, float64 of shape (4,).
    """
    table = context.table
    n_actions = actions_of(table)
    counter = stretch.key + np.uint64(stretch.offset) * GAMMA
    learned = Learned(table.n_touched[0], totals[3])
    for n in range(stretch.steps):
        i = first + n
        random = mix(counter)
        now = Now(
            on_line(stretch.step_size, n), on_line(stretch.epsilon, n), random ^ GAMMA, batch.walkers[i], 1
        )
        state, action = batch.states[i], batch.actions[i]
        learned = on_action(rule, context, now, state, action, learned)
        step = Transition(
            state, action, batch.rewards[i], batch.next_states[i], batch.terminated[i], batch.truncated[i], i
        )
        learned = learn(rule, context, now, step, learned)
        learned = learn_again(
            rule, replay, state * n_actions + action, step, context.masks, now, ~random, learned
        )
        counter += GAMMA
    table.n_touched[0] = learned.touched
    totals[3] = learned.error
