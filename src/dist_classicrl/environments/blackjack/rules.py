"""The game by Gymnasium's rules: the outcomes of its states, and whether an environment plays it."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from typing import Any

import numpy as np

from dist_classicrl.checks import is_flag
from dist_classicrl.environments.making.conversion import fields_of_outcomes
from dist_classicrl.errors import EnvError

_CARDS = np.arange(1, 11)
_CHANCE = np.where(_CARDS == 10, 4, 1) / 13
_SUMS, _SHOWN = 32, 11
N_SEEN = _SUMS * _SHOWN * 2
"""States that are told apart by what the player sees: the sum, the dealer's card and a usable ace."""

_DECK = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10]
_FUNCTIONS = (
    "cmp draw_card draw_hand usable_ace sum_hand is_bust score is_natural _hand_sum_and_usable_ace".split()
)
_METHODS = ("reset", "step", "_get_obs")
_SOURCE = "c2aeea96eeb4787670459a3325ab08034d3da8cdfc58c659204b895dfb57c397"
"""SHA-256 of these in Gymnasium 1.3 and 1.4. What another release plays, somebody has to read first."""


def fields_of(natural: bool, sab: bool) -> dict[str, Any]:
    """Return the fields of a model of the game.

    The state is ``(sum * 11 + dealer's card) * 2 + usable ace``. Where the first two cards matter, with
    `natural` or `sab`, an ace and a ten are a state of their own, ``704 + dealer's card``.
    """
    n = N_SEEN + (_SHOWN if natural or sab else 0)
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
            special, plain = N_SEEN + shown, _number(21, shown, 1)
            for array in (chance, follow, reward, ends):
                array[special] = array[plain]
            follow[special, 0] = special
            if sab:  # only a dealer with an ace and a ten does not lose
                draws = {1: _CHANCE[-1], 10: _CHANCE[0]}.get(shown, 0.0)
                chance[special, 0, :3] = 1.0 - draws, draws, 0.0
            else:
                reward[special, 0, 0] = 1.5
    return {**fields_of_outcomes(chance, follow, reward, ends), "start_prob": _first(n)}


def seen_of(n_states: int) -> np.ndarray:
    """Return of each state of `fields_of` the one that looks the same to the player, int64."""
    seen = np.arange(n_states)
    seen[N_SEEN:] = _number(21, seen[N_SEEN:] - N_SEEN, 1)
    return seen


def _number(total: Any, shown: Any, ace: int) -> Any:
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
                is_special = total == 21 and n_states > N_SEEN
                start[N_SEEN + shown if is_special else _number(total, int(shown), ace)] += (
                    dealer * first * second
                )
    return start


def played_by(env: Any, base: Any) -> tuple[bool, bool]:
    """Return `natural` and `sab` of a `BlackjackEnv`, which is `base`, and under its wrappers `env`.

    EnvError, with the reason, where it is not known to play the game of `fields_of`.
    """
    from gymnasium.envs.toy_text import blackjack
    from gymnasium.spaces import Discrete, Tuple

    if "_get_obs" in vars(base):
        raise EnvError("this BlackjackEnv has its own _get_obs, which is not its class's")
    if not _is_source_known(blackjack):
        raise EnvError("the source of Gymnasium's Blackjack is not the one that is known here")
    for name, space in (
        ("observation_space", Tuple((Discrete(_SUMS), Discrete(_SHOWN), Discrete(2)))),
        ("action_space", Discrete(2)),
    ):
        for holder in (env, base):
            if getattr(holder, name) != space:
                raise EnvError(f"{name} is {getattr(holder, name)}, and that of Blackjack is {space}")
    if not (is_flag(base.natural) and is_flag(base.sab)):
        raise EnvError(
            f"natural={base.natural!r} and sab={base.sab!r} of this BlackjackEnv must be True or False"
        )
    return bool(base.natural), bool(base.sab)


def _is_source_known(module: Any) -> bool:
    """Return whether Gymnasium's functions are those that were read, and nobody has put others there."""
    digest = hashlib.sha256()
    try:
        functions = [getattr(module, name) for name in _FUNCTIONS]
        functions += [getattr(module.BlackjackEnv, name) for name in _METHODS]
        for function in functions:
            # Of the code: a function that wraps another one would tell the source of that.
            digest.update(inspect.getsource(function.__code__).encode())
        return type(module.deck) is list and module.deck == _DECK and digest.hexdigest() == _SOURCE
    except (AttributeError, OSError):  # it has no such function, or Python no source of it
        return False
