"""n-step tree backup: Precup, Sutton and Singh (2000); Sutton and Barto (2018), section 7.5."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.rules import returns
from dist_classicrl.learning.rules.kernel import best_value, is_legal, mean_value, rule_function, value
from dist_classicrl.learning.rules.q_lambda import best_now
from dist_classicrl.learning.rules.truths import soft_values
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import actions_of


class TreeBackup(NamedTuple):
    """Q(s, a) moves towards what a target policy pi collects, by n steps of another one.

    G_t = r + gamma (sum over a != a' of pi(a | s') Q(s', a) + pi(a' | s') G_t+1), where a' is played
    (equation 7.16), which after n steps ends with r + gamma sum pi(a | s') Q(s', a). pi is epsilon-greedy
    with an epsilon of its own, and no weights of importance sampling are needed. It converges to the values
    of the best such policy, whatever the behavior is.

    Attributes
    ----------
    n : int
        Steps, from 1 to 65,536.
    target_epsilon : float
        From 0, where pi is greedy and it converges to Q*, to 1.
    """

    n: int = 4
    target_epsilon: float = 0.0


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    """Go on with the action that was chosen, as far as pi does; learn the oldest step if there are n."""
    count = returns.waiting(context, now)
    if count > 0:
        worth = value(context, state, action)
        even = rule.target_epsilon * returns.reached(context, now, rule.n, 2)
        is_best = worth >= best_now(context, now, rule.n, context.masks, state)
        chance = even + (1.0 - rule.target_epsilon if is_best else 0.0)
        expected = returns.reached(context, now, rule.n, 1)
        returns.follow(context, now, rule.n, expected - chance * worth, chance)
        if count == rule.n:
            learned = returns.learn_oldest(context, now, rule.n, expected, learned)
    return learned


@rule_function
def learn(rule, context, now, step, learned):
    """Keep a step; learn all that wait where an episode ends."""
    returns.keep(context, now, rule.n, step)
    expected = 0.0
    if not step.terminated:
        best = best_value(context, step)
        expected = best + rule.target_epsilon * (mean_value(context, step) - best)
        returns.reach(context, now, rule.n, 0, best)
        returns.reach(context, now, rule.n, 1, expected)
        returns.reach(context, now, rule.n, 2, _even_chance(context, step))
    if step.terminated or step.truncated:
        learned = returns.learn_all(context, now, rule.n, expected, learned)
    return learned


@rule_function
def _even_chance(context, step):
    n_actions, n_legal = actions_of(context.table), 0
    for action in range(n_actions):
        n_legal += is_legal(context.table.legal, context.masks, step.next_state, n_actions, action, step.i)
    return 1.0 / max(n_legal, 1)


RULE = register(
    LearningRule(
        name="tree_backup",
        parameters=TreeBackup,
        learn=learn,
        on_action=learn_waiting,
        truth=lambda model, parameters, settings: soft_values(model, settings, parameters.target_epsilon),
        **returns.declared(share="target_epsilon", reached=3),
    )
)
