"""Q-learning (Watkins and Dayan, 1992) as jitted loops over plain arrays.

The arrays belong to a `dist_classicrl.tables.local.LocalTable` of S states and A actions; an entry is s * A
+ a:

- ``q`` (S * A,) float64: the local table; -inf where an action is illegal in a compiled environment;
- ``best`` (S,) float64 and ``greedy`` (S,) int32: the maximum of each row and where it is, -1 where several
  are equal. In a compiled environment ``best`` is 0 where no action is legal: nothing can be collected there.
  Kept up to date by whoever changes ``q``, so that the next action does not wait for a search;
- ``weight`` (S * A,) float64 and ``shift`` (S * A,) float64: the affine map that the updates since the last
  push make;
- ``updates`` (S * A,) int64: visits in the low 32 bits, replayed updates in the high 32; not 0 means touched;
- ``visits`` (S * A,) int64: the visits known besides those, the clock of per-visit step sizes;
- ``touched`` (S * A + 1,) int64 and ``n_touched`` (1,) int64: the touched entries, in the order of their
  first touch.

Row searches are unrolled where the number of actions is part of a type: `row_shape` is a tuple of A zeros, or
None to read A from the arrays. It makes the loop 1.05 to 1.4 times as fast, and costs a compilation per
number of actions.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, SHIFT_32, below, mix
from dist_classicrl.environments.simulate import advance, begin

VISIT_MASK = (1 << 32) - 1
ONE_REPLAY = 1 << 32
DRAWS_PER_STEP = 3
UNROLLED_ACTIONS = 16
"""Up to this many actions, `row_shape` is worth its compilation."""

_SMALLEST_WEIGHT = 1e-290
_EXACT_BITS = 13
_TWO_32 = 4294967296.0
_STEP_STRIDE = np.uint64(DRAWS_PER_STEP * int(GAMMA) % 2**64)
_TWICE_GAMMA = np.uint64(2 * int(GAMMA) % 2**64)


@intrinsic
def _leading_zeros(typing_context, value):
    """Count the leading zero bits of an int64."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, True))

    return types.int64(types.int64), generate


@jit_inline
def visit_bucket(visits):
    """Return the slot of `PerVisit.table` for `visits` >= 1: exact below 8192, then 4096 slots per octave."""
    octave = max(64 - _EXACT_BITS - _leading_zeros(np.int64(visits)), 0)
    return (octave << (_EXACT_BITS - 1)) + (visits >> octave)


@jit_inline
def refresh_row(q, best, greedy, state, n_actions):
    """Set `best` and `greedy` of `state` from its row of `q`."""
    row = state * n_actions
    top = q[row]
    where = 0
    tie = False
    for action in range(1, n_actions):
        value = q[row + action]
        above = value > top
        tie = (tie | (value == top)) & (not above)
        where = action if above else where
        top = value if above else top
    best[state] = top
    greedy[state] = -1 if tie else where


@jit
def pick_among_best(q, top, row, n_actions, random):
    """Return one of the actions whose value is `top`, each with the same chance."""
    count = 0
    for action in range(n_actions):
        count += q[row + action] == top
    pick = below(random, count)
    for action in range(n_actions):
        if q[row + action] == top:
            if pick == 0:
                return action
            pick -= 1
    return 0


@jit_inline
def update_entry(q, best, greedy, weight, shift, entry, state, n_actions, target, step_size):
    """Learn `target` at `entry` of `state`: the value moves, the map composes, the row's maximum follows."""
    keep = 1.0 - step_size
    old = q[entry]
    new = old + step_size * (target - old)
    q[entry] = new
    kept = weight[entry] * keep
    weight[entry] = kept if kept > _SMALLEST_WEIGHT else 0.0  # denormal numbers are a hundred times slower
    shift[entry] = keep * shift[entry] + step_size * target
    if new != old and (old == best[state] or new >= best[state]):
        refresh_row(q, best, greedy, state, n_actions)


@jit_inline
def _step_size_at(step_sizes, visits, updates, entry, extra):
    known = visits[entry] + (updates[entry] & VISIT_MASK) + extra
    return step_sizes[visit_bucket(max(known, 1))]


@jit
def remember(replay, entry, reward, next_state, terminated):
    """Write a transition into the ring buffer `replay`, and return its place there.

    `replay` = (entries, rewards, targets, state, ratio, masks). ``entries`` and ``targets`` are int64 of the
    ring's capacity, a target being the next state doubled, plus 1 where the transition terminated; ``state``
    is float64: the number held, the next place, and the updates owed. ``masks`` is bool (capacity, A), the
    legal actions of the next states, or None where these do not come with the transitions; `keep_mask` writes
    it.
    """
    entries, rewards, targets, ring, ratio, _ = replay
    place = np.int64(ring[1])
    entries[place] = entry
    rewards[place] = reward
    targets[place] = next_state * 2 + terminated
    ring[0] = max(ring[0], ring[1] + 1.0)
    ring[1] = 0.0 if place + 1 == entries.size else ring[1] + 1.0
    ring[2] += ratio
    return place


@jit
def keep_mask(kept, place, masks, i):
    """Copy row `i` of `masks` to row `place` of `kept`, unless `masks` is None."""
    if masks is not None:
        for action in range(masks.shape[1]):
            kept[place, action] = masks[i, action]


@jit_inline
def state_value(q, best, state, n_actions, masks, i):
    """Return the largest value in `state` of the actions that row `i` of `masks` allows; None allows all.

    0 where it allows none: an episode was truncated there, and nothing more can be collected.
    """
    if masks is None:
        return best[state]
    top = -np.inf
    for action in range(n_actions):
        if masks[i, action]:
            top = max(top, q[state * n_actions + action])
    return 0.0 if top == -np.inf else top


@jit
def replay_updates(
    replay,
    q,
    best,
    greedy,
    weight,
    shift,
    updates,
    visits,
    touched,
    count,
    step_sizes,
    step_size,
    discount,
    n_actions,
    random,
):
    """Do the replayed updates that are owed, and return the new number touched.

    Each is on a uniformly drawn transition: Lin (1992). They count as updates of the map, not as visits.
    """
    entries, rewards, targets, ring, _, masks = replay
    draw = random
    while ring[2] >= 1.0:
        ring[2] -= 1.0
        draw += GAMMA
        place = below(mix(draw), np.int64(ring[0]))
        entry = entries[place]
        target = rewards[place]
        if targets[place] & 1 == 0:
            target += discount * state_value(q, best, targets[place] >> 1, n_actions, masks, place)
        alpha = step_size if step_sizes is None else _step_size_at(step_sizes, visits, updates, entry, 0)
        update_entry(q, best, greedy, weight, shift, entry, entry // n_actions, n_actions, target, alpha)
        touched[count] = entry
        count += updates[entry] == 0
        updates[entry] += ONE_REPLAY
    return count


@jit
def learn_steps(
    simulation,
    memory,
    position,
    running_return,
    time_limit,
    legal,
    row_shape,
    q,
    best,
    greedy,
    weight,
    shift,
    updates,
    visits,
    touched,
    n_touched,
    step_sizes,
    step_size,
    step_size_slope,
    step_size_at,
    epsilon,
    epsilon_slope,
    epsilon_at,
    discount,
    replay,
    key,
    offset,
    steps,
    totals,
):
    """Act epsilon-greedily, simulate and learn for `steps` steps in one loop.

    The module names the table's arrays. What the loop does depends on the stream and the offset, not on how a
    stretch of steps is cut into calls.

    Parameters
    ----------
    simulation : NamedTuple
        See `dist_classicrl.environments.simulate`.
    memory : ndarray(int64, ndim=1)
        Hidden state of a game.
    position : ndarray(int64), shape (2,)
        The state, -1 before the first episode, and the steps of the episode so far. Read and written.
    running_return : ndarray(float64), shape (1,)
        Undiscounted return of the episode so far; NaN or infinite once a reward was. Read and written.
    time_limit : int
        Steps after which an episode is truncated.
    legal : None or (ndarray(int32), shape (S,), ndarray(int32), shape (S * A,))
        Number of legal actions of each state, and these actions at the front of each row.
    row_shape : None or tuple of A ints
    step_sizes : None or ndarray(float64, ndim=1)
        `PerVisit.table`. None: the straight line ``step_size + step_size_slope * (step_size_at + i)`` at step
        i.
    epsilon, epsilon_slope, epsilon_at : float, float, int
        Chance of a uniformly random action, a straight line alike.
    discount : float
    replay : None or tuple
        See `remember`.
    key : uint64
        The random stream.
    offset : int
        Steps that this stream has served before.
    steps : int
    totals : ndarray(float64), shape (4,)
        Episodes ended, the sums of their returns and of their lengths, and the sum of the absolute temporal
        differences are added here.
    """
    n_actions = q.size // best.size if row_shape is None else len(row_shape)
    counter = key + np.uint64(offset) * _STEP_STRIDE
    epsilon_32 = epsilon * _TWO_32
    epsilon_slope_32 = epsilon_slope * _TWO_32
    state = position[0]
    elapsed = position[1]
    collected = running_return[0]
    count = n_touched[0]
    errors = totals[3]
    if state < 0:
        state = np.int64(begin(simulation, memory, mix(~counter)))
    for step in range(steps):
        random = mix(counter)
        explore = (
            np.float64(np.int64(random >> SHIFT_32)) < epsilon_32 + (epsilon_at + step) * epsilon_slope_32
        )
        row = state * n_actions
        action = np.int64(greedy[state])
        if legal is None:
            other = below(random, n_actions)
        else:
            other = np.int64(legal[1][row + below(random, legal[0][state])])
        if action < 0 and not explore:
            action = pick_among_best(q, best[state], row, n_actions, random)
        action = other if explore else action
        next_state, reward, terminated = advance(
            simulation, memory, state, action, mix(counter + GAMMA), n_actions
        )
        entry = row + action
        if step_sizes is None:
            alpha = step_size + (step_size_at + step) * step_size_slope
        else:
            alpha = _step_size_at(step_sizes, visits, updates, entry, 1)
        target = reward if terminated else reward + discount * best[next_state]
        known = updates[entry]
        touched[count] = entry
        count += known == 0
        updates[entry] = known + 1
        collected += reward
        elapsed += 1
        errors += abs(target - q[entry])
        update_entry(q, best, greedy, weight, shift, entry, state, n_actions, target, alpha)
        if replay is not None:
            remember(replay, entry, reward, next_state, terminated)
            count = replay_updates(
                replay, q, best, greedy, weight, shift, updates, visits, touched, count,
                step_sizes, alpha, discount, n_actions, ~random,
            )  # fmt: skip
        state = np.int64(next_state)
        if terminated or elapsed >= time_limit:
            totals[0] += 1.0
            totals[1] += collected
            totals[2] += elapsed
            if abs(collected) < np.inf:  # else it stays, for the caller to see
                collected = 0.0
            elapsed = 0
            state = np.int64(begin(simulation, memory, mix(counter + _TWICE_GAMMA)))
        counter += _STEP_STRIDE
    position[0] = state
    position[1] = elapsed
    running_return[0] = collected
    n_touched[0] = count
    totals[3] = errors


@jit
def choose_actions(q, best, greedy, n_actions, states, masks, epsilon, key, offset, actions):
    """Fill `actions` epsilon-greedily, ties broken evenly, for a batch of B environments.

    Parameters
    ----------
    states : ndarray(int64), shape (B,)
    masks : None or ndarray(bool), shape (B, A)
        Legal actions; at least one in each row.
    epsilon : float
    key, offset : uint64, int
        The random stream and the draws that it has served before; B more are used.
    actions : ndarray(int64), shape (B,)
    """
    counter = key + np.uint64(offset) * GAMMA
    for i in range(states.size):
        random = mix(counter)
        counter += GAMMA
        state = states[i]
        row = state * n_actions
        explore = np.float64(np.int64(random >> SHIFT_32)) < epsilon * _TWO_32
        if masks is None:
            if explore:
                actions[i] = below(random, n_actions)
            elif greedy[state] >= 0:
                actions[i] = greedy[state]
            else:
                actions[i] = pick_among_best(q, best[state], row, n_actions, random)
        else:
            top = -np.inf
            for action in range(n_actions):
                if masks[i, action] and not explore:
                    top = max(top, q[row + action])
            count = 0
            for action in range(n_actions):
                count += masks[i, action] and (explore or q[row + action] == top)
            pick = below(random, count)
            for action in range(n_actions):
                if masks[i, action] and (explore or q[row + action] == top):
                    if pick == 0:
                        actions[i] = action
                        break
                    pick -= 1


@jit
def learn_batch(
    states,
    actions,
    rewards,
    next_states,
    terminated,
    next_masks,
    first,
    last,
    q,
    best,
    greedy,
    weight,
    shift,
    updates,
    visits,
    touched,
    n_touched,
    step_sizes,
    step_size,
    step_size_slope,
    step_size_at,
    discount,
    replay,
    key,
    offset,
    totals,
):
    """Learn transitions `first` to `last` - 1 of a batch of B, one after the other.

    The module names the table's arrays.

    Parameters
    ----------
    states, actions, next_states : ndarray(int64), shape (B,)
    rewards : ndarray(float64), shape (B,)
    terminated : ndarray(bool), shape (B,)
        A truncated transition is not terminated: it bootstraps from `next_states`.
    next_masks : None or ndarray(bool), shape (B, A)
        Legal actions of `next_states`: the target's maximum is over them.
    replay : None or tuple
        See `remember`. It has masks where `next_masks` are given.
    key, offset : uint64, int
        The random stream of replay, and the transitions that it has served before.
    totals : ndarray(float64), shape (4,)
        The sum of the absolute temporal differences is added to the last.
    """
    n_actions = q.size // best.size
    counter = key + np.uint64(offset) * GAMMA
    count = n_touched[0]
    errors = totals[3]
    for i in range(first, last):
        entry = states[i] * n_actions + actions[i]
        if step_sizes is None:
            alpha = step_size + (step_size_at + i - first) * step_size_slope
        else:
            alpha = _step_size_at(step_sizes, visits, updates, entry, 1)
        target = rewards[i]
        if not terminated[i]:
            target += discount * state_value(q, best, next_states[i], n_actions, next_masks, i)
        errors += abs(target - q[entry])
        update_entry(q, best, greedy, weight, shift, entry, states[i], n_actions, target, alpha)
        touched[count] = entry
        count += updates[entry] == 0
        updates[entry] += 1
        if replay is not None:
            place = remember(replay, entry, rewards[i], next_states[i], terminated[i])
            keep_mask(replay[5], place, next_masks, i)
            count = replay_updates(
                replay, q, best, greedy, weight, shift, updates, visits, touched, count,
                step_sizes, alpha, discount, n_actions, ~mix(counter),
            )  # fmt: skip
        counter += GAMMA
    n_touched[0] = count
    totals[3] = errors
