"""Blackjack by Gymnasium's rules."""

from __future__ import annotations

from functools import cache

import numpy as np

from dist_classicrl.checks import YesOrNo
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import model_of_outcomes

_CARDS = np.arange(1, 11)
_CHANCE = np.where(_CARDS == 10, 4, 1) / 13
_SUMS, _SHOWN = 32, 11
_PLAIN = _SUMS * _SHOWN * 2


def blackjack(natural: bool = False, sab: bool = True, max_episode_steps: int | None = None) -> TabularMDP:
    """Return the Blackjack of Sutton and Barto, example 5.1, by the rules of Gymnasium's Blackjack-v1.

    Cards come from an endless deck, the dealer stands on 17, and a win gives 1, a loss -1. Actions are
    0, stick, and 1, hit. The state is ``(sum * 11 + dealer's card) * 2 + usable ace``, with an ace of
    the dealer as 1: as the observations of Blackjack-v1 are numbered. Where the first two cards matter,
    with `natural` or `sab`, an ace and a ten are a state of their own, ``704 + dealer's card``.

    The best policy without discount is that of the book's figure 5.2. It collects -0.043113 a game,
    without `sab` -0.046556, and with `natural` in its place -0.025729, computed by value iteration.

    Train: ``dist-classicrl train dist_classicrl/Blackjack-v0 --discount-factor 1 --total-steps 1e8``.

    Parameters
    ----------
    natural : bool
        Winning with an ace and a ten gives 1.5; ignored with `sab`.
    sab : bool
        The rules of the book, which Blackjack-v1 is registered with: an ace and a ten win at once,
        unless the dealer has them, too.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    natural, sab = YesOrNo()("natural", natural), YesOrNo()("sab", sab)
    n = _PLAIN + (_SHOWN if natural or sab else 0)
    chance, follow = np.zeros((n, 2, 10)), np.zeros((n, 2, 10), np.int64)
    reward, ends = np.zeros((n, 2, 10)), np.ones((n, 2, 10), bool)
    # Sums that no hand has lead nowhere.
    chance[:, :, 0], follow[:] = 1.0, np.arange(n)[:, None, None]
    wins = np.array([1.0, 0.0, -1.0])
    for shown in range(1, _SHOWN):
        hands = [(total, ace) for ace in (0, 1) for total in range(12 if ace else 4, 22)]
        for total, ace in hands:
            state = _number(total, shown, ace)
            chance[state, 0, :3], reward[state, 0, :3] = _against(total, shown), wins
            chance[state, 1] = _CHANCE
            for k, card in enumerate(_CARDS):
                after, still = _hit(total, ace, int(card))
                follow[state, 1, k] = _number(after, shown, still)
                ends[state, 1, k] = after > 21
                reward[state, 1, k] = -1.0 if after > 21 else 0.0
        if natural or sab:
            special, plain = _PLAIN + shown, _number(21, shown, 1)
            for array in (chance, follow, reward, ends):
                array[special] = array[plain]
            follow[special, 0] = special
            if sab:  # only a dealer with an ace and a ten does not lose
                draws = {1: _CHANCE[-1], 10: _CHANCE[0]}.get(shown, 0.0)
                chance[special, 0, :3] = 1.0 - draws, draws, 0.0
            else:
                reward[special, 0, 0] = 1.5
    return model_of_outcomes(
        chance,
        follow,
        reward,
        ends,
        start=_first(n),
        name="Blackjack" + (", sab" if sab else ", natural" if natural else ""),
        max_episode_steps=max_episode_steps,
    )


def _number(total: int, shown: int, ace: int) -> int:
    return (total * _SHOWN + shown) * 2 + ace


def _hit(total: int, ace: int, card: int) -> tuple[int, int]:
    """Return sum and usable ace after one more card."""
    hard = total - 10 * ace + card
    has_ace = bool(ace) or card == 1
    return (hard + 10, 1) if has_ace and hard + 10 <= 21 else (hard, 0)


@cache
def _dealt(total: int, ace: int) -> tuple[float, ...]:
    """Return the chances of the dealer's last sums, 17 to 21 and then above, from a sum on."""
    if total >= 17:
        return tuple(float(min(total, 22) == last) for last in range(17, 23))
    rest = [_dealt(*_hit(total, ace, int(card))) for card in _CARDS]
    return tuple(_CHANCE @ np.array(rest))


def _against(total: int, shown: int) -> tuple[float, float, float]:
    """Return the chances to win, draw and lose with a sum, against the dealer's first card."""
    last = np.array(_dealt(*_hit(0, 0, shown)))
    sums = np.array([17, 18, 19, 20, 21, 0])
    return float(last[sums < total].sum()), float(last[sums == total].sum()), float(last[sums > total].sum())


def _first(n_states: int) -> np.ndarray:
    start = np.zeros(n_states)
    for shown, dealer in zip(_CARDS, _CHANCE, strict=True):
        for one, first in zip(_CARDS, _CHANCE, strict=True):
            for two, second in zip(_CARDS, _CHANCE, strict=True):
                total, ace = _hit(*_hit(0, 0, int(one)), int(two))
                is_special = total == 21 and n_states > _PLAIN
                start[_PLAIN + shown if is_special else _number(total, int(shown), ace)] += (
                    dealer * first * second
                )
    return start
