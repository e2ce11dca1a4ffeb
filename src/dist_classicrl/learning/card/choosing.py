"""Whether a training can be on a card, and whether it gains by that."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.simulate import GAMES
from dist_classicrl.errors import DeviceError, DistClassicRLError
from dist_classicrl.learning.card.cards import (
    Card,
    card_of_rank,
    cards,
    free_memory,
    place_among,
    place_on_host,
)
from dist_classicrl.learning.card.plan import (
    ONE_TABLE_ON_CARD,
    bytes_of_arrays,
    bytes_with_one_table,
    has_copies,
)
from dist_classicrl.learning.rules import MOST_WAITING, find, table_shape
from dist_classicrl.rules import LearningRule
from dist_classicrl.settings import Settings
from dist_classicrl.tables.line_table import size_of

logger = logging.getLogger(__name__)

AUTO_STEPS = 10**9
"""Steps from which device="auto" takes a card: a core makes them in half a minute, and kernels take 6 to 15
seconds to compile."""


def why_not(source: Source, settings: Settings, engine: str) -> str | None:
    """Return why a training cannot be on a card, and what to write instead; None: it can.

    It goes on from "a training on a card cannot be had: ".
    """
    # First, since the engine goes by it: keys on several ranks have no other one.
    if (why := why_not_simulated(source, settings)) is not None:
        return why
    if engine in ("sharded", "supersteps"):
        return (
            f"ranks learn in rows that they share or own (the engine {engine!r}), which lie in main memory. "
            'Write placement="replicated"'
        )
    if engine == "decentralized":
        return (
            'ranks without a server merge what they learned by topology="decentralized", and do so on cores '
            'alone. Write topology="flat"'
        )
    if engine not in ("local", "server", "rounds"):
        return f"the engine {engine!r} is none that knows of cards. Take one of the library's"
    rule, parameters = find(settings.algorithm)
    if (why := _why_not_rule(rule, parameters)) is not None:
        return f"the rule {rule.name!r} {why}. Take another, such as 'q_learning' or 'sarsa'"
    return None


def why_not_simulated(source: Source, settings: Settings) -> str | None:
    """Return likewise why an environment, or replay, cannot be on a card, whatever is learned there."""
    if source.keys is not None:
        return f"the states of {source.name} are keys, whose rows grow in main memory. Number the states"
    if source.simulator is None:
        return (
            f"{source.name} is stepped through Gymnasium, by Python. Write it as a game for "
            "CompiledSimulator, or as a TabularMDP"
        )
    game = GAMES.get(type(source.simulator.tables))
    if game is not None and game.check:
        return (
            f"{source.name} was made with check=True, and a card cannot raise IndexError in the middle of a "
            "step. Leave check out"
        )
    if settings.replay_ratio > 0.0:
        return (
            f"replay_ratio={settings.replay_ratio:g} asks for a replay memory for each of the many walkers. "
            "Write replay_ratio=0"
        )
    return None


def _why_not_rule(rule: LearningRule, parameters: Any) -> str | None:
    """Return why a rule cannot learn on a card: each walker has to move entries towards targets."""
    if rule.has_model(parameters):
        return (
            "keeps a model of the environment, of which each walker would need one, as each run of "
            "learn_runs has"
        )
    for one in rule.shared:
        if one.merge != "owner":  # else each walker has its own
            return f"shares {one.name} among all entries, and a step's walkers would all move it at once"
    if rule.on_target is not None:
        return "looks at the entry that it moves, which a step's other walkers move at the same time"
    if rule.name == "td":
        return "moves all actions of a state at once, and walkers write letters to single entries"
    if rule.waits is None and (rule.on_action is not None or not rule.can_travel):
        return "does not declare that each call moves one entry, or how many steps wait (can_travel, waits)"
    waits = rule.waiting(parameters)
    if waits > MOST_WAITING:
        return f"lets {waits:,} steps wait, and at most {MOST_WAITING} may in the memory of each walker"
    return None


def letters_of(rule: LearningRule, parameters: Any) -> int:
    """Return how many entries a step of one walker can want moved."""
    return 1 if rule.waits is None else 2 * rule.waiting(parameters) + 2


def card_for(
    source: Source,
    settings: Settings,
    engine: str,
    ranks: int,
    serves: bool,
    steps: int,
    place: tuple[int, int] | None = None,
) -> tuple[Card | None, str]:
    """Return the card that this rank is to learn on, None for cores, and why.

    `serves`: it has others learn. `steps` are those of this rank, as far as it knows. `place` is its number
    among the ranks of its host that learn, and how many these are; by default what launchers say.

    Raises
    ------
    MissingExtraError, DeviceError
        If device="cuda" cannot be had, with the reason.
    """
    if settings.device == "cpu":
        return None, 'device="cpu"'
    why = why_not(source, settings, engine)
    if settings.device == "cuda":
        if why is not None:
            raise DeviceError(f'device="cuda" cannot be had: {why}; or device="cpu".')
        if serves:
            return None, "this rank serves, and learns nothing while others do"
        return card_of_this_rank(place), 'device="cuda"'
    if why is not None:
        return None, why
    if not settings.may_take_card:
        return None, "in the reproducible mode a seed's table must not depend on who has a card"
    if serves:
        return None, "this rank serves, and learns nothing while others do"
    if steps < AUTO_STEPS:
        return None, (
            f"{steps:,} steps are fewer than {AUTO_STEPS:,}, which a core makes while kernels are compiled"
        )
    try:
        found = cards()
        number, wanting = place_among(found, place or place_on_host())
    except DistClassicRLError as error:
        return None, str(error)
    if ranks > 1 and number >= len(found):
        return None, f"the {len(found)} cards of this host are for other ranks of the {wanting} there"
    card = card_of_rank(found, number)
    try:  # only now, as that begins to use the card
        free = free_memory(card)
    except DeviceError as error:
        return None, str(error)
    needed = _least_bytes(source, settings, engine == "local")
    if needed > free:
        return None, (
            f"the table and its model need {needed / 2**30:.3g} GiB at least, and {card} has "
            f"{free / 2**30:.3g} GiB that nobody uses"
        )
    return card, "there is one, and the problem suits it"


def _least_bytes(source: Source, settings: Settings, is_alone: bool) -> int:
    """Return what a training takes of a card's memory, besides what small tables and walkers take."""
    rule, parameters = find(settings.algorithm)
    shape = table_shape(settings.algorithm, source.n_states, source.n_actions)
    model = 0 if source.simulator is None else bytes_of_arrays(source.simulator.tables)
    if has_copies(shape.size):
        return model
    if is_alone and settings.async_updates:
        return size_of(shape, np.dtype(settings.dtype)) + model
    letters = letters_of(rule, parameters)
    return bytes_with_one_table(shape.size, ONE_TABLE_ON_CARD.walkers, letters, 0, model)


def card_of_this_rank(place: tuple[int, int] | None = None) -> Card:
    """Return the card of this rank among those of its host; `place` is as in `card_for`.

    MissingExtraError or DeviceError where there is no card.
    """
    found = cards()
    number, wanting = place_among(found, place or place_on_host())
    if number >= len(found):
        logger.warning(
            "%d ranks of this host want a card, and it has %d: some share one, and are no quicker by that.",
            wanting,
            len(found),
        )
    return card_of_rank(found, number)


def say_choice(settings: Settings, card: Card | None, why: str) -> None:
    """Log where this rank learns, where that was asked for as "auto" or is a card."""
    if card is not None:
        logger.info("Learning on %s: %s.", card, why)
    elif settings.device == "auto":
        logger.info("Learning on cores: %s.", why.rstrip("."))
