"""What people of this field call settings elsewhere, and what they are called here."""

from __future__ import annotations

SYNONYMS = {
    "algo": "algorithm",
    "alpha": "learning_rate",
    "discount": "discount_factor",
    "env": "environment",
    "env_id": "environment",
    "eps": "epsilon",
    "eval_freq": "eval_every",
    "gamma": "discount_factor",
    "lr": "learning_rate",
    "n_eval_episodes": "eval_episodes",
    "num_envs": "n_envs",
    "num_steps": "total_steps",
    "output": "out",
    "output_dir": "out",
    "processes": "ranks",
    "step_size": "learning_rate",
    "steps": "total_steps",
    "timesteps": "total_steps",
    "total_timesteps": "total_steps",
}


def own_word(word: str) -> str:
    """Return the option that a word, without its dashes in front, means; itself where it is no synonym."""
    meant = SYNONYMS.get(word.replace("-", "_"))
    return word if meant is None else meant.replace("_", "-")
