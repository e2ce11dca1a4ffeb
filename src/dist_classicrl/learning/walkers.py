"""The training loop of tables that no cache holds: many walkers learn in one table, a step each at a time.

A step waits for memory three times: for the row of the state, for what the model says of the action, and for
the row of the next state. While one walker's line comes, the others' are asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, stub
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note, prefetch_outcome, tell_wrong
from dist_classicrl.learning.behavior import choose
from dist_classicrl.learning.keyed_game import has_room, name_of, number_states, prefetch_next
from dist_classicrl.learning.loops import STEP_STRIDE, TWICE_GAMMA, on_line
from dist_classicrl.learning.rules.kernel import Learned, Now, Transition, learn, on_action
from dist_classicrl.tables.lines import prefetch_counts, prefetch_values
from dist_classicrl.tables.rows import actions_of


class Walkers(NamedTuple):
    """K episodes under way in a compiled environment; each array has the first axis K and is written."""

    states: np.ndarray  # int64; -1 before the first episode
    elapsed: np.ndarray  # int64: steps of the episode
    collected: np.ndarray  # float64: its undiscounted return so far, NaN or infinite once a reward was
    memory: np.ndarray  # int64, shape (K, memory): hidden state of a game
    actions: np.ndarray  # int64, as what follows of the step under way
    next_states: np.ndarray
    rewards: np.ndarray  # float64
    terminated: np.ndarray  # bool
    time_limit: int  # steps after which an episode is truncated
    came: np.ndarray  # int64: what was wrong, see `note`
    made: np.ndarray  # int64, shape (1,): steps that the last call has made
    reward_that_came: np.ndarray  # float64, shape (1,)


@jit_inline
def _now(stretch, i, random, walker):
    return Now(on_line(stretch.step_size, i), on_line(stretch.epsilon, i), random ^ GAMMA, walker, 1)


@stub
def _begun(simulation, walkers, k, random, n_states):
    """Begin an episode of walker `k`; return its state, or -1 where that is none."""


@overloads(_begun, inline=True)  # not `jit_inline`: machine code with a user's game in it is not kept on disk
def _overload_begun(simulation, walkers, k, random, n_states):
    def impl(simulation, walkers, k, random, n_states):
        came = walkers.came
        note(simulation, came, -1, -1)
        state = np.int64(begin(simulation, walkers.memory[k], random))
        if is_wrong(simulation, state, 0.0, n_states):
            came[0], came[1], came[2] = -1, -1, state
            walkers.reward_that_came[0] = 0.0
            state = np.int64(-1)
        return state

    return impl


@jit
def walk(rule, simulation, walkers, context, stretch, totals):
    """Act, simulate and learn for a stretch of steps: a walker, the next, and so on, round and round.

    Step n of the stream is that of walker n modulo their number. All that move at a time, up to the last one,
    choose first, then all are simulated, then all learn, in their order. The arguments, and what is returned,
    are those of `dist_classicrl.learning.loops.learn_steps`.
    It returns before the steps are made, as `walkers.made` tells, where a table of keys has to grow first.
    """
    table, states, memory = context.table, walkers.states, walkers.memory
    n_actions = actions_of(table)
    counter = stretch.key + np.uint64(stretch.offset) * STEP_STRIDE
    learned = Learned(0, totals[3])
    first = stretch.offset % states.size
    done = 0
    walkers.made[0] = 0
    while done < stretch.steps and has_room(simulation, walkers):
        moving = min(states.size - first, stretch.steps - done)
        for i in range(moving):
            k = np.uint64(first + i)  # unsigned, an index needs no check for counting from the end
            at = counter + np.uint64(i) * STEP_STRIDE
            random = mix(at)
            now = _now(stretch, done + i, random, first + i)
            if states[k] < 0:
                states[k] = _begun(simulation, walkers, k, mix(~at), table.n_states)
                if states[k] < 0:
                    return True
            state = states[k]
            action = choose(context.behavior, rule, context, state, now.epsilon, random)
            learned = on_action(rule, context, now, state, action, learned)
            walkers.actions[k] = action
            prefetch_counts(table, state, action)
            prefetch_outcome(simulation, state, action, mix(at + GAMMA), n_actions)
        for i in range(moving):
            k = np.uint64(first + i)
            random = mix(counter + np.uint64(i) * STEP_STRIDE + GAMMA)
            note(simulation, walkers.came, states[k], walkers.actions[k])
            next_state, reward, terminated = advance(
                simulation, memory[k], states[k], walkers.actions[k], random, n_actions
            )
            if is_wrong(simulation, np.int64(next_state), reward, table.n_states):
                tell_wrong(walkers.came, name_of(simulation, states[k]), walkers.actions[k], next_state)
                walkers.reward_that_came[0] = reward
                states[:] = -1
                return True
            walkers.next_states[k] = next_state
            walkers.rewards[k] = reward
            walkers.terminated[k] = terminated
            prefetch_next(simulation, table, next_state)
        if not number_states(simulation, walkers, first, first + moving):
            states[:] = -1
            return True
        for i in range(moving):
            k = np.uint64(first + i)
            at = counter + np.uint64(i) * STEP_STRIDE
            now = _now(stretch, done + i, mix(at), first + i)
            walkers.elapsed[k] += 1
            walkers.collected[k] += walkers.rewards[k]
            terminated = walkers.terminated[k]
            has_ended = terminated or walkers.elapsed[k] >= walkers.time_limit
            next_state = walkers.next_states[k]
            step = Transition(
                states[k],
                walkers.actions[k],
                walkers.rewards[k],
                next_state,
                terminated,
                has_ended and not terminated,
                0,
            )
            learned = learn(rule, context, now, step, learned)
            if has_ended:
                totals[0] += 1.0
                totals[1] += walkers.collected[k]
                totals[2] += walkers.elapsed[k]
                if abs(walkers.collected[k]) < np.inf:  # else it stays, for the caller to see
                    walkers.collected[k] = 0.0
                walkers.elapsed[k] = 0
                next_state = _begun(simulation, walkers, k, mix(at + TWICE_GAMMA), table.n_states)
                if next_state < 0:
                    states[:] = -1
                    return True
                prefetch_values(table, next_state)
            states[k] = next_state
        done += moving
        counter += np.uint64(moving) * STEP_STRIDE
        first = 0
        walkers.made[0] = done
    totals[3] = learned.error
    return False
