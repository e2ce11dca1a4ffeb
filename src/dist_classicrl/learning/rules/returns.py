"""Returns of several steps: what a walker keeps of its last steps, and the targets that follow from them.

Every such return is G_k = r_k + gamma (c_k + d_k G_k+1), from the last step back, whose own is r + gamma b: a
constant and a factor per step, known once the next action is, and a bootstrap b. With c = 0, d = 1 it is the
n-step return (Sutton and Barto, 2018, equation 7.4); c = (1 - lambda) v and d = lambda make it the truncated
lambda-return (equation 12.9) of the values v; and so on. The oldest step of n that wait is learned when the
action after the newest is known, and all of them where an episode ends. The values in c, d and b are those of
the time at which the step was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.behavior import next_value
from dist_classicrl.learning.rules.kernel import bits, entry_of, rule_function, update
from dist_classicrl.rules import Range
from dist_classicrl.tables.rows import actions_of

# Whole numbers: how many steps wait, the place of the oldest, and the entries of all.
_WAITING, _OLDEST, _ENTRIES = 0, 1, 2

# Real ones: rewards, constants and factors of n steps each, then what is known of the state that was reached.
_REWARDS, _CONSTANTS, _FACTORS, _REACHED = 0, 1, 2, 3

MOST_STEPS = 1 << 16


def declared(
    steps: str = "n",
    share: str = "",
    reached: int = 0,
    learns_at_once: bool = False,
    can_travel: bool = True,
) -> dict[str, Any]:
    """Return what a rule declares for `LearningRule` of the steps that its walkers keep.

    `steps` and `share` are the hyper-parameters that say how many steps these are, and of a part from 0 to 1,
    if there is one; `reached` is how many numbers it keeps of the state that was reached. `learns_at_once`:
    with so many steps the oldest does not wait for the next action. `can_travel`: see `LearningRule`.
    """

    def memory(parameters: Any) -> tuple[int, int]:
        n = getattr(parameters, steps)
        return _ENTRIES + n, 3 * n + reached

    def ranges(parameters: Any, n_states: int, n_actions: int) -> tuple[Range, ...]:
        n = getattr(parameters, steps)
        return (
            Range("the steps that wait", 0, n - 1 if learns_at_once else n),
            Range("the place of the oldest", 0, n - 1),
            Range("the entries of the steps", 0, n_states * n_actions - 1, n),
        )

    def check(parameters: Any) -> None:
        name, n = type(parameters).__name__, getattr(parameters, steps)
        if share and not 0.0 <= (part := getattr(parameters, share)) <= 1.0:
            raise SettingsError(f"{name}: {share} must be from 0 to 1, got {part:g}. Write for instance 0.9.")
        if not 1 <= n <= MOST_STEPS:
            usual = parameters._field_defaults[steps]
            raise SettingsError(
                f"{name}: {steps} must be a whole number of steps from 1 to {MOST_STEPS:,}, got {n}. Write "
                f"for instance {steps}={usual}."
            )

    def waits(parameters: Any) -> int:
        return int(getattr(parameters, steps))

    travelling = {"waits": waits, "can_travel": True} if can_travel else {}
    return {"memory": memory, "whole_ranges": ranges, "check": check, **travelling}


@jit_inline
def waiting(context, now):
    """Return how many steps wait."""
    return context.whole[now.walker, _WAITING]


@jit_inline
def _place(context, w, n, k):
    """Return the place of the k-th oldest step."""
    place = context.whole[w, _OLDEST] + k
    return place - n if place >= n else place


@jit_inline
def keep(context, now, n, step):
    """Keep a step, of which there must be room for one."""
    whole, real, w = context.whole, context.real, now.walker
    place = _place(context, w, n, whole[w, _WAITING])
    whole[w, _ENTRIES + place] = entry_of(context, step.state, step.action)
    real[w, _REWARDS * n + place] = step.reward
    whole[w, _WAITING] += 1


@jit_inline
def reached(context, now, n, number):
    """Return what `reach` kept."""
    return context.real[now.walker, _REACHED * n + number]


@jit_inline
def reach(context, now, n, number, what):
    """Keep a number of the state that was reached."""
    context.real[now.walker, _REACHED * n + number] = what


@jit_inline
def follow(context, now, n, constant, factor):
    """Let the newest step go on with c and d."""
    real, w = context.real, now.walker
    place = _place(context, w, n, context.whole[w, _WAITING] - 1)
    real[w, _CONSTANTS * n + place] = constant
    real[w, _FACTORS * n + place] = factor


@jit_inline
def _back(context, w, n, k, target):
    """Return the return of the k-th oldest step from that of the next one."""
    real, place = context.real, _place(context, w, n, k)
    after = real[w, _CONSTANTS * n + place] + real[w, _FACTORS * n + place] * target
    return real[w, _REWARDS * n + place] + context.discount * after


@jit_inline
def _newest(context, w, n, bootstrap):
    """Return the return of the newest step."""
    place = _place(context, w, n, context.whole[w, _WAITING] - 1)
    return context.real[w, _REWARDS * n + place] + context.discount * bootstrap


@jit
def target_of_oldest(context, now, n, bootstrap):
    """Return the target of the oldest step, and its entry; it waits no longer."""
    whole, w = context.whole, now.walker
    target = _newest(context, w, n, bootstrap)
    for k in range(whole[w, _WAITING] - 2, -1, -1):
        target = _back(context, w, n, k, target)
    oldest = whole[w, _OLDEST]
    whole[w, _WAITING] -= 1
    whole[w, _OLDEST] = 0 if oldest + 1 == n else oldest + 1
    return target, whole[w, _ENTRIES + oldest]


@jit_inline
def learn_oldest(context, now, n, bootstrap, learned):
    """Learn the oldest step."""
    target, entry = target_of_oldest(context, now, n, bootstrap)
    row, action = divmod(entry, actions_of(context.table))
    return update(context, now, row, action, target, learned)


def idle_alone(*names: str) -> Callable[[Any], dict[str, str]]:
    """Return the `idle` of a rule for which these hyper-parameters weigh the steps after the first."""
    return lambda parameters: dict.fromkeys(
        names if parameters.n == 1 else (), "looks one step ahead with n=1"
    )


@jit
def has_earlier(context, now, n, k):
    """Return whether the entry of the k-th oldest step is that of an older one, too."""
    whole, w = context.whole, now.walker
    entry = whole[w, _ENTRIES + _place(context, w, n, k)]
    for j in range(k):
        if whole[w, _ENTRIES + _place(context, w, n, j)] == entry:
            return True
    return False


@jit_inline
def target_back(context, now, n, k, bootstrap, target):
    """Return the target of the k-th oldest step of all, from that of the next; and its entry."""
    w = now.walker
    if k == context.whole[w, _WAITING] - 1:
        target = _newest(context, w, n, bootstrap)
    else:
        target = _back(context, w, n, k, target)
    return target, context.whole[w, _ENTRIES + _place(context, w, n, k)]


@jit_inline
def forget(context, now):
    """Let no step wait."""
    context.whole[now.walker, _WAITING] = 0


@jit
def learn_all(context, now, n, bootstrap, learned):
    """Learn all steps that wait, the newest first."""
    target = 0.0
    for k in range(waiting(context, now) - 1, -1, -1):
        target, entry = target_back(context, now, n, k, bootstrap, target)
        row, action = divmod(entry, actions_of(context.table))
        learned = update(context, now, row, action, target, learned)
    forget(context, now)
    return learned


@rule_function
def learn_to_next_action(rule, context, now, step, learned):
    """Keep a step; learn all that wait where an episode ends, with an action drawn there if it is cut off."""
    keep(context, now, rule.n, step)
    if step.terminated or step.truncated:
        bootstrap = 0.0
        if step.truncated:
            bootstrap = next_value(rule, context, now, step, bits(now, 0))
        learned = learn_all(context, now, rule.n, bootstrap, learned)
    return learned
