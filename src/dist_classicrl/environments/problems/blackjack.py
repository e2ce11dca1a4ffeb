"""Blackjack by Gymnasium's rules."""

from __future__ import annotations

from dist_classicrl.checks import YesOrNo
from dist_classicrl.environments.blackjack.rules import fields_of
from dist_classicrl.environments.model import TabularMDP


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
    return TabularMDP(
        **fields_of(natural, sab),
        name="Blackjack" + (", sab" if sab else ", natural" if natural else ""),
        max_episode_steps=max_episode_steps,
    )
