"""Q(lambda) by truncated lambda-returns: Watkins (1989), and Peng and Williams (1996)."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.rules import returns
from dist_classicrl.learning.rules.kernel import best_value, rule_function, value
from dist_classicrl.learning.rules.truths import optimal_values, pengs_values
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import row_maximum

WATKINS, PENG = 0, 1


class QLambda(NamedTuple):
    """Q(s, a) moves towards a lambda-return of the best actions, truncated after n steps.

    G_t = r + gamma ((1 - lambda) max Q(s', .) + lambda G_t+1), which ends with r + gamma max Q(s', .) after n
    steps and, with the variant "watkins", where the action that is played in s' is not the best one (Sutton
    and Barto, 2018, section 12.10): so it converges to Q*. The variant "peng" goes on, learns faster, and
    converges to values between those of the behavior and Q* (Harutyunyan et al., 2016): to Q* only if the
    behavior becomes greedy, as with an epsilon that falls to 0. With ``trace_decay=1`` they are n-step
    Q-learning, cut or not.

    Attributes
    ----------
    trace_decay : float
        lambda, from 0 (Q-learning) to 1.
    variant : str
        "watkins" or "peng".
    n : int
        Steps, from 1 to 65,536.
    """

    trace_decay: float = 0.9
    variant: str = "watkins"
    n: int = 16


@rule_function
def best_now(context, now, n, masks, state):
    """Return the largest value in `state`: as it is, or where a mask came with it, as it was then."""
    # What may be None is an argument: only there numba leaves out the other branch.
    return row_maximum(context.table, state) if masks is None else returns.reached(context, now, n, 0)


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    """Go on, or not, with the action that was chosen; learn the oldest step if there are n."""
    count = returns.waiting(context, now)
    if count > 0:
        best = best_now(context, now, rule.n, context.masks, state)
        goes_on = rule.variant == PENG or value(context, state, action) >= best
        factor = rule.trace_decay if goes_on else 0.0
        returns.follow(context, now, rule.n, (1.0 - factor) * best, factor)
        if count == rule.n:
            learned = returns.learn_oldest(context, now, rule.n, best, learned)
    return learned


@rule_function
def learn(rule, context, now, step, learned):
    """Keep a step; learn all that wait where an episode ends."""
    returns.keep(context, now, rule.n, step)
    best = 0.0 if step.terminated else best_value(context, step)
    if step.terminated or step.truncated:
        return returns.learn_all(context, now, rule.n, best, learned)
    returns.reach(context, now, rule.n, 0, best)
    return learned


def truth(model, parameters, settings):
    """Return Q*, which "peng" comes to only with a behavior that becomes greedy."""
    if parameters.variant == "watkins":
        return optimal_values(model, parameters, settings)
    return pengs_values(model, settings, parameters.trace_decay, parameters.n)


RULE = register(
    LearningRule(
        name="q_lambda",
        parameters=QLambda,
        learn=learn,
        on_action=learn_waiting,
        truth=truth,
        idle=returns.idle_alone("trace_decay", "variant"),
        choices={"variant": ("watkins", "peng")},
        **returns.declared(share="trace_decay", reached=1),
    )
)
