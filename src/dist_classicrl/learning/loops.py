"""The training loops: jitted, over plain arrays that the caller owns.

What a loop does depends on the stream and the position in it, not on how a stretch of steps is cut into
calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._jit.bound import taken
from dist_classicrl._random import GAMMA, key_at, mix
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note
from dist_classicrl.environments.stepped.base import (
    ENDED,
    GOES_ON,
    WRONG,
    WRONG_MASK,
    Counted,
    settle_one,
    take_mask,
)
from dist_classicrl.environments.stepped.masks import first_blocked
from dist_classicrl.learning.behavior import choose, choose_legal
from dist_classicrl.learning.replay import learn_again
from dist_classicrl.learning.rules.kernel import Learned, Now, Transition, learn, on_action
from dist_classicrl.tables.round_kernels import IS_UNSOUND, LOST, WORKERS, fold_maps, pack_part
from dist_classicrl.tables.rows import actions_of

DRAWS_PER_STEP = 3
STEP_STRIDE = np.uint64(DRAWS_PER_STEP * int(GAMMA) % 2**64)
TWICE_GAMMA = np.uint64(2 * int(GAMMA) % 2**64)

STEPS_PER_WALKER = 2000
"""So many steps have to be made for each walker of supersteps that moves at once, and of a card's rounds.

More would learn from a table that does not know yet what the first of them found out. With half as many, and
64 walkers at the beginning, the error on Taxi was 1.26 times that of one walker, and on a chain of 100 states
1.19 times.
"""

LARGEST_SUM = 2.0**1000
"""Of what `Totals` counts, so that records, which add up millions of such sums, stay finite as well."""


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
    epsilon: Line  # the chance of a uniformly random action, or Boltzmann's temperature


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


class Shares(NamedTuple):
    """What some walkers, which follow each other, do in a round, all from the same table.

    The walker of number n makes `share` steps, and one more if it is one of the first `more`. On the lines,
    whose rates are as in `Stretch`, its first step follows the last one of the walker before.
    """

    first: int  # the number of the first of them
    share: int
    more: int
    key: np.uint64  # their random streams have draws of this one as keys
    step_size: Line  # from the first step of walker 0 on
    epsilon: Line


NO_SHARES = Shares(0, 0, 0, np.uint64(0), NO_LINE, NO_LINE)


class StackedWalkers(NamedTuple):
    """Episodes under way, N of them, each row as the array of this name in `Walker`."""

    memory: np.ndarray  # int64, shape (N, M)
    position: np.ndarray  # int64, shape (N, 2)
    collected: np.ndarray  # float64, shape (N, 1)
    time_limit: int
    came: np.ndarray  # int64, shape (N, 3)


class Batch(NamedTuple):
    """Transitions of stepped environments, B of them: each array has the shape (B,)."""

    walkers: np.ndarray  # int64, as the next three; a walker is an environment of the batch
    states: np.ndarray
    actions: np.ndarray
    next_states: np.ndarray
    rewards: np.ndarray  # float64
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool; these bootstrap from their next state


class Logged(NamedTuple):
    """Logged transitions, B of them, each by itself: each array has the shape (B,)."""

    states: np.ndarray  # int64, as the next two
    actions: np.ndarray
    next_states: np.ndarray
    rewards: np.ndarray  # float64
    terminated: np.ndarray  # bool
    next_actions: np.ndarray | None  # int64: for rules that learn when the next action is known
    step_sizes: np.ndarray  # float64: where they do not depend on visits
    randoms: np.ndarray  # uint64: where a rule's draws begin


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
def learn_apart(
    rule, simulation, walkers, row, context, shares, until, base, limit, packing, totals, came, reward
):
    """Let walkers do their quotas one after the other, each from the same table, and add up their maps.

    The first of them is in row `row` of `walkers`, and adds to the first row of `totals`, float64 of shape
    (N, 4), and so on. The table goes back to its `base`, a `tables.round_kernels.Base`, after each. It goes
    on where `packing`, a `Packing`, is, up to the walker at place `until` or where that has no room for a
    part. Return what `learn_steps` does: then `came` and `reward`, float64 of shape (1,), are what it wrote.
    """
    progress = packing.progress
    while pack_part(packing) and progress[WORKERS] < until:
        i = progress[WORKERS]
        walker = Walker(
            row + i,
            walkers.memory[row + i],
            walkers.position[row + i],
            walkers.collected[row + i],
            walkers.time_limit,
            walkers.came[row + i],
        )
        number = shares.first + i
        later = number * shares.share + min(number, shares.more)
        stretch = Stretch(
            key_at(shares.key, number),
            0,
            shares.share + (number < shares.more),
            Line(shares.step_size.value, shares.step_size.slope, shares.step_size.at + later),
            Line(shares.epsilon.value, shares.epsilon.slope, shares.epsilon.at + later),
        )
        if learn_steps(rule, simulation, walker, context, None, stretch, totals[i]):
            for place in range(came.size):
                came[place] = walker.came[place]
            reward[0] = walker.collected[0]
            return True
        progress[LOST] = max(progress[LOST], fold_maps(context.table, base, limit, False, packing.sums))
        if not _can_go_on(walker.collected[0], totals[i]):
            progress[IS_UNSOUND] = 1
        progress[WORKERS] = i + 1
    return False


@jit_inline
def _can_go_on(collected, totals):
    """Whether returns and errors are such that they can be added up."""
    is_sound = abs(collected) < np.inf
    for place in range(totals.size):
        is_sound &= abs(totals[place]) <= LARGEST_SUM
    return is_sound


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
def note_steps(batch, masks, first, counted, actions, next_masks):
    """Write what one step of E environments gave to `batch` from entry `first` on; return how many it holds.

    `counted` has the step, of `actions`, int64 of shape (E,); left out is what is not valid. `next_masks`,
    None or bool of shape (E, A), are the legal actions of the next states, which go to `masks`, shape (B, A).
    """
    n = first
    for e in range(counted.valid.size):
        if not counted.valid[e]:
            continue
        batch.walkers[n] = e
        batch.states[n] = counted.before[e]
        batch.actions[n] = actions[e]
        batch.next_states[n] = counted.next_states[e]
        batch.rewards[n] = counted.rewards[e]
        batch.terminated[n] = counted.terminated[e]
        # Of a time limit that runs out where an episode terminates Gymnasium says both: nothing is cut off.
        batch.truncated[n] = counted.truncated[e] and not counted.terminated[e]
        if next_masks is not None:
            for action in range(next_masks.shape[1]):
                masks[n, action] = next_masks[e, action]
        n += 1
    return n


# Places in `Stepping.whole`.
HELD = 0  # transitions in the batch
DUE = 1  # the first of those, which are to be learned now; 0: it waits for more
LEFT = 2  # steps still to learn, of those that were asked for
USED = 3  # steps that the stream has served
ON_LINE = 4  # the next steps over which each rate is one line
STEP_SIZE_AT, EPSILON_AT = 5, 6  # of the lines, from where the stream began
DRAWS = 7  # draws of actions used
WHOLES = 8

# Places in `Stepping.lines`: for the step size, then for the exploration rate.
VALUE, SLOPE = 0, 1


class Stepping(NamedTuple):
    """What E environments are stepped and learned from with, and how far that has come."""

    rule: Any
    context: Any  # its masks, None or bool of shape (B, A), are the legal actions of the next states
    replay: Any  # or None
    counted: Counted  # of the environments, as the next three
    given_mask: np.ndarray | None
    masks: np.ndarray | None  # bool, shape (E, A), as the next
    next_masks: np.ndarray | None
    batch: Batch
    actions: np.ndarray  # int64, shape (E,)
    totals: np.ndarray  # see `learn_batch`
    batch_size: int
    key: np.uint64  # what actions are drawn from
    stream: np.ndarray  # uint64, shape (1,): the random stream of what is learned
    whole: np.ndarray  # int64, shape (WHOLES,): see above, as the next
    lines: np.ndarray  # float64, shape (2, 2)


# What `go_on` is to do.
ACT = 0  # choose the actions of where the environments stand
LEARN = 1  # learn what is due
STEPPED = 2  # take a step of the environments into the batch, and learn what is due
PLAYED = 3  # settle a step of the only environment first; choose the next action, if no episode has ended
BEGUN = 4  # begin the next episode, learn what is due, and choose the first action


@jit_inline
def take_play(what, counted, given_mask, masks, next_masks, next_state, reward, terminated, truncated):
    """Take what the only environment gave in a step that was PLAYED, or by a reset where one has BEGUN.

    Return what `settle_one` does; or WRONG_MASK, and then nothing was taken.
    """
    if what == BEGUN:
        if not _takes_mask(given_mask, masks):
            return WRONG_MASK
        counted.states[0] = next_state
        return GOES_ON
    if not _takes_mask(given_mask, next_masks):
        return WRONG_MASK
    came = settle_one(counted, next_state, reward, terminated, truncated)
    if came != WRONG:
        _pass_mask(next_masks, masks)
    return came


@jit
def go_on(stepping, what, next_state, reward, terminated, truncated):
    """Go on with environments that are stepped; `stepping` is a `Stepping`, bound.

    What is due are whole batches as long as they are full; the lines may end before: then DUE is not 0.
    The last arguments are what the step gave that was PLAYED, or the state where an episode has BEGUN.
    Return what `settle_one` does where no action is due: the episode has ended, the lines or the steps to
    learn have, or no action is legal; or WRONG_MASK; or else the action.
    """
    stepping = taken(stepping)
    context, counted, batch, whole = stepping.context, stepping.counted, stepping.batch, stepping.whole
    came = GOES_ON
    if what >= PLAYED:
        came = take_play(
            what,
            counted,
            stepping.given_mask,
            stepping.masks,
            stepping.next_masks,
            next_state,
            reward,
            terminated,
            truncated,
        )
        if came == WRONG or came == WRONG_MASK:
            return came
        if came == ENDED:
            stepping.totals[0] += 1.0
            stepping.totals[1] += counted.ended_returns[0]
            stepping.totals[2] += counted.ended_lengths[0]
    if what == STEPPED or what == PLAYED:
        held, actions = whole[HELD], stepping.actions
        whole[DRAWS] += actions.size
        whole[HELD] = note_steps(batch, context.masks, held, counted, actions, stepping.next_masks)
    if what != ACT and came != ENDED:
        first = 0
        while True:
            steps = _due(stepping.batch_size, whole[HELD] - first, whole)
            if steps == 0:
                break
            stretch = _stretch_of(stepping.stream, whole, stepping.lines, steps)
            learn_batch(stepping.rule, batch, first, context, stepping.replay, stretch, stepping.totals)
            first += steps
            whole[USED] += steps
            whole[DUE] -= steps
            whole[LEFT] -= steps
            whole[ON_LINE] -= steps
        if first > 0:
            whole[HELD] = _keep_from(first, whole[HELD], batch, context.masks)
    if came == ENDED or what == LEARN or what == STEPPED:
        return came
    if what != ACT and (whole[LEFT] == 0 or whole[ON_LINE] == 0 or not can_act(stepping.masks)):
        return came
    epsilon = on_line(_stretch_of(stepping.stream, whole, stepping.lines, 0).epsilon, 0)
    choose_actions(
        stepping.rule,
        context,
        counted.states,
        stepping.masks,
        epsilon,
        stepping.key,
        whole[DRAWS],
        stepping.actions,
    )
    return stepping.actions[0]


@jit_inline
def _due(batch_size, held, whole):
    """Return how many of the transitions held are to be learned next, all of them on the lines."""
    if whole[DUE] == 0:
        size = min(batch_size, whole[LEFT])
        if held >= size:
            whole[DUE] = size
    return min(whole[DUE], whole[ON_LINE])


@jit_inline
def _keep_from(first, held, batch, masks):
    """Move the transitions from `first` on to the front of a batch; return how many these are."""
    for i in range(held - first):
        batch.walkers[i] = batch.walkers[first + i]
        batch.states[i] = batch.states[first + i]
        batch.actions[i] = batch.actions[first + i]
        batch.next_states[i] = batch.next_states[first + i]
        batch.rewards[i] = batch.rewards[first + i]
        batch.terminated[i] = batch.terminated[first + i]
        batch.truncated[i] = batch.truncated[first + i]
        if masks is not None:
            for action in range(masks.shape[1]):
                masks[i, action] = masks[first + i, action]
    return held - first


@jit_inline
def _stretch_of(stream, whole, lines, steps):
    """Return the next `steps` on the lines."""
    used = whole[USED]
    return Stretch(
        stream[0],
        used,
        steps,
        Line(lines[0, VALUE], lines[0, SLOPE], whole[STEP_SIZE_AT] + used),
        Line(lines[1, VALUE], lines[1, SLOPE], whole[EPSILON_AT] + used),
    )


# What may be None is an argument of a function of its own: only there numba leaves out the other branch.


@jit_inline
def _takes_mask(given, masks):
    return True if given is None else take_mask(given, masks)


@jit_inline
def _pass_mask(next_masks, masks):
    if masks is not None:
        for action in range(masks.shape[1]):
            masks[0, action] = next_masks[0, action]


@jit_inline
def can_act(masks):
    """Whether each environment has a legal action."""
    return True if masks is None else first_blocked(masks) < 0


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


@jit
def learn_logged(rule, logged, context, epsilon, totals):
    """Learn logged transitions one after the other.

    The sum of the absolute temporal differences is added to the last of `totals`, float64 of shape (4,).
    """
    table = context.table
    learned = Learned(table.n_touched[0], totals[3])
    for i in range(logged.states.size):
        now = Now(logged.step_sizes[i], epsilon, logged.randoms[i], 0, 1)
        state, action, next_state = logged.states[i], logged.actions[i], logged.next_states[i]
        step = Transition(state, action, logged.rewards[i], next_state, logged.terminated[i], False, 0)
        learned = learn(rule, context, now, step, learned)
        learned = _learn_next(rule, context, now, logged.next_actions, i, step, learned)
    table.n_touched[0] = learned.touched
    totals[3] = learned.error


@jit_inline
def _learn_next(rule, context, now, next_actions, i, step, learned):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    if next_actions is None or step.terminated:
        return learned
    return on_action(rule, context, now, step.next_state, next_actions[i], learned)
