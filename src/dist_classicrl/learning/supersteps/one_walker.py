"""What is done with one walker in a superstep, or with one entry, by whichever kernel goes through them."""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit_inline, natural
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.environments.keyed import as_key
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note, tell_wrong
from dist_classicrl.environments.state_keys import held, put_state_at
from dist_classicrl.learning.loops import STEP_STRIDE, on_line
from dist_classicrl.learning.rules.kernel import Learned, Now, learn, step_size
from dist_classicrl.learning.supersteps.crew import MEMORY
from dist_classicrl.learning.supersteps.letters import keep, recall
from dist_classicrl.learning.supersteps.sums import add_exactly
from dist_classicrl.tables.blocks import lowest_bit
from dist_classicrl.tables.lines import learn_target_as
from dist_classicrl.tables.rows import actions_of, count, value_of

# What a kernel returns: whether it could go on, or what was wrong.
FINE, WRONG_GAME, WRONG_RULE, WRONG_RECORD = 0, 1, 2, 3

_OF_KEYS = 0x5851F42D4C957F2D  # tells the names of entries of several tables apart


@jit_inline
def come_or_go(crew, identity):
    """Take note that a walker comes, or goes."""
    crew.here[np.uint64(identity >> 6)] ^= np.int64(1) << (identity & 63)


@jit_inline
def gather(crew, size):
    """List those of the first `size` identities that are here; return how many there are."""
    n = 0
    for word in range((size + 63) >> 6):
        bits = crew.here[np.uint64(word)]
        if size - (word << 6) < 64:
            bits &= (np.int64(1) << (size - (word << 6))) - 1
        while bits != 0:
            crew.numbers[np.uint64(n)] = (word << 6) + lowest_bit(bits)
            bits &= bits - 1
            n += 1
    return n


@jit_inline
def counter_at(stretch, done, identity):
    """Return where the random numbers of a walker's step begin."""
    return stretch.key + np.uint64(stretch.offset + done + identity) * STEP_STRIDE


@jit_inline
def draw(crew, stretch, done, first, last):
    """Draw the random numbers of a block's steps: by themselves, several at a time."""
    for k in range(first, last):
        at = counter_at(stretch, done, crew.numbers[natural(k)])
        j = natural(k - first)
        crew.draws[0, j], crew.draws[1, j] = mix(at), mix(at + GAMMA)


@jit_inline
def moment(stretch, number, random):
    """Return the moment of step `number` of a stretch."""
    return Now(on_line(stretch.step_size, number), on_line(stretch.epsilon, number), random ^ GAMMA, 0, 1)


@jit_inline
def begin_episode(simulation, crew, record, random):
    """Begin an episode in the memory of `record`; return its state, and whether it is one."""
    note(simulation, crew.came, -1, -1)
    state = held(begin(simulation, record[MEMORY : MEMORY + crew.memory_size], random))
    if is_wrong(simulation, state, 0.0, crew.n_states):
        tell_wrong(crew.came, -1, -1, state)
        crew.reward_that_came[0] = 0.0
        return state, False
    return state, True


@jit_inline
def simulate(simulation, crew, j, record, state, action, random, n_actions):
    """Make the step of a walker, the `j`-th of its block; return whether what came of it can be."""
    note(simulation, crew.came, state, action)
    memory = record[MEMORY : MEMORY + crew.memory_size]
    given, reward, terminated = advance(
        simulation, memory, as_key(simulation, state), action, random, n_actions
    )
    next_state = held(given)
    if is_wrong(simulation, next_state, reward, crew.n_states):
        tell_wrong(crew.came, state, action, next_state)
        crew.reward_that_came[0] = reward
        return False
    put_state_at(crew.next_states, j, next_state)
    crew.rewards[j], crew.terminated[j] = reward, terminated
    return True


@jit_inline
def count_end(crew, elapsed, collected):
    """Count an episode that ended."""
    crew.ends[0] += 1
    crew.ends[1] += elapsed
    if abs(collected) < np.inf:
        add_exactly(crew.returns, collected)
    else:
        crew.infinite[0] = collected


@jit_inline
def find_target(rule, first, asking, now, step, record, reals, targets, at):
    """Put the target of a step into a row of `targets`; return whether the rule gave one, and one only.

    That is of the entry that was acted on. What the rule remembers of the walker is in the record, from word
    `first` on.
    """
    outbox = asking.table
    outbox.put[2] = 0
    recall(asking, first, record, reals)
    learn(rule, asking, now, step, Learned(0, 0.0))
    keep(asking, first, record, reals)
    targets[at, 0] = outbox.target[0]
    row = outbox.put[0]
    if targets.shape[1] > 1:
        # A division takes as long as a tenth of a step, and most rules have one table.
        number = row // outbox.n_states if row >= outbox.n_states else 0
        targets[at, 1] = number
        row = row - number * outbox.n_states if number < outbox.n_tables else -1
    return outbox.put[2] == 1 and row == step.state and outbox.put[1] == step.action


@jit_inline
def entry_name(pair, table, n_pairs):
    """Return what an entry is called on any rank: that of `pair`, state * A + action, in one of the tables.

    A table has `n_pairs` of them; 0: states are keys.
    """
    return np.uint64(pair + table * (n_pairs if n_pairs > 0 else _OF_KEYS))


@jit_inline
def move_entry(context, now, row, action, target, name, errors):
    """Move an entry towards its target, which is a visit; `name` is its `entry_name`."""
    table = context.table
    size = step_size(context, now, row, action)
    error = abs(target - value_of(table, row, action))
    if error < np.inf:
        add_exactly(errors, error)
    count(table, row, action, 1, 0)
    learn_target_as(table, row, action, target, size, name)


@jit_inline
def move_state(context, now, row, target, first, errors):
    """Move the values of all legal actions of a state; the error counts once.

    In float32 all of them are drawn by one name, that of entry `first`: what is equal stays so.
    """
    table, name = context.table, np.uint64(first)
    is_first = True
    for action in range(actions_of(table)):
        if value_of(table, row, action) > -np.inf:
            if is_first:
                move_entry(context, now, row, action, target, name, errors)
                is_first = False
            else:
                size = step_size(context, now, row, action)
                count(table, row, action, 1, 0)
                learn_target_as(table, row, action, target, size, name)
    if is_first:  # nothing is legal there: who looks for that sees the visit, and no number
        count(table, row, 0, 1, 0)
        learn_target_as(table, row, 0, target, step_size(context, now, row, 0), name)
