"""TicTacToe against a random machine player as a finite model, with its exact probabilities."""

from __future__ import annotations

import numpy as np

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.reachability import row_pointer
from dist_classicrl.environments.tictactoe.rules import N_SQUARES, SLOT_TO_REWARD, AgentPlays, rules


def model(agent_plays: AgentPlays = "first") -> TabularMDP:
    """Return the game as a finite Markov decision process.

    States, actions and rewards are those of `TicTacToeEnv`. An outcome that ends the game leads to the state
    that the agent moved in, as the environment's last observation does. Illegal actions have no outcome, and
    there is no time limit.
    """
    tables = rules(agent_plays)
    n_states = len(tables.boards)
    n_slots = np.diff(tables.slot_ptr)
    is_legal = np.repeat(tables.legal.ravel(), n_slots)
    pair_of_slot = np.repeat(np.arange(n_states * N_SQUARES), n_slots)

    # Replies that lead to the same state, or that all end the game alike, are one outcome.
    turns = np.stack([pair_of_slot[is_legal], tables.slots[is_legal].astype(np.int64)], axis=1)
    outcomes, n_alike = np.unique(turns, axis=0, return_counts=True)
    pair, slot = outcomes.T
    terminated = slot < 0
    return TabularMDP(
        n_states=n_states,
        n_actions=N_SQUARES,
        outcome_ptr=row_pointer(pair, n_states * N_SQUARES),
        outcome_prob=n_alike / n_slots[pair],
        outcome_next=np.where(terminated, pair // N_SQUARES, slot),
        outcome_reward=np.where(terminated, slot + SLOT_TO_REWARD, 0).astype(np.float64),
        outcome_terminated=terminated,
        start_prob=np.bincount(tables.starts, minlength=n_states) / len(tables.starts),
        action_mask=tables.legal,
        name=f"TicTacToe(agent_plays={agent_plays!r})",
    )
