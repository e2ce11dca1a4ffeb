"""What people of this field call settings elsewhere, and which options they are here."""

from __future__ import annotations

from collections.abc import Iterable

import click

from dist_classicrl._arguments import OURS

_OPTIONS = {
    "env": "environment",
    "eval_freq": "eval_every",
    "n_eval_episodes": "eval_episodes",
    "output": "out",
    "output_dir": "out",
    "processes": "ranks",
    "steps": "total_steps",
}
_ARGUMENTS = ("algorithm", "discount_factor", "env", "epsilon", "learning_rate", "n_envs", "total_steps")

SYNONYMS = {
    word: _OPTIONS.get(argument, argument)
    for word, argument in OURS.items()
    if argument in _ARGUMENTS and word not in _OPTIONS.values()
} | _OPTIONS


def own_word(word: str) -> str:
    """Return the option that a word, without its dashes in front, means; itself where it is no synonym."""
    meant = SYNONYMS.get(word.replace("-", "_"))
    return word if meant is None else meant.replace("_", "-")


def check_one_word_each(words: Iterable[str]) -> None:
    """Raise click.UsageError where the words of a command line have an option in two ways."""
    found: dict[str, str] = {}
    for each in words:
        if each == "--":
            return
        word = each.partition("=")[0]
        if word.startswith("--") and found.setdefault(own_word(word[2:]), word) != word:
            raise click.UsageError(f"{found[own_word(word[2:])]} and {word} are the same: give one of them.")
