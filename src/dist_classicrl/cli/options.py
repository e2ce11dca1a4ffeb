"""The table of everything that `train` can be told: an option of the command, and a key in a TOML file.

An option `--learning-rate` is the key `learning_rate`. Names and defaults of the library's own settings are
those of `Settings` and of `DistAsyncQLearning.train`, except that records are closer together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from dist_classicrl.cli.option_types import (
    Choice,
    Flag,
    Folder,
    Kind,
    Mode,
    Names,
    Real,
    Schedule,
    StepsOrTime,
    Time,
    Whole,
    WholeOr,
)

AGENT = "Learning"
TALKING = "Communication and lost ranks"
SAVING = "Checkpoints and stopping"
SHOWING = "Records, evaluation and display"
RUN = "The run"


@dataclass(frozen=True)
class Option:
    """One thing that `train` can be told.

    Attributes
    ----------
    name : str
        Its key; the option's name has dashes.
    kind : Kind
    default : object
        None: it is left out.
    help : str
    section : str
        Of the help.
    is_kept : bool
        Whether a run keeps it for good: with another value it would be another experiment.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    section: str
    is_kept: bool = False

    def to_click(self) -> click.Option:
        """Return it as an option of a command; None stands for what is not given there."""
        words = f"--{self.name.replace('_', '-')}"
        if isinstance(self.kind, Flag):
            words += f"/--no-{self.name.replace('_', '-')}"
        return click.Option(
            [words, self.name],
            type=None if isinstance(self.kind, Flag) else self.kind,
            is_flag=isinstance(self.kind, Flag),
            default=None,
            metavar=None if isinstance(self.kind, Flag) else self.kind.name.upper(),
            help=f"{self.help}{self._shown_default()}",
        )

    def _shown_default(self) -> str:
        if self.default is None or self.default == ():
            return ""
        value = self.kind.to_data(self.default)
        text = ",".join(value) if isinstance(value, list) else value
        shown = {True: "yes", False: "no"}.get(text, text) if isinstance(text, bool) else text
        return f"  [default: {shown}]"


def _settings(section: str, is_kept: bool, *rows: tuple[str, Kind, Any, str]) -> list[Option]:
    return [Option(*row, section, is_kept) for row in rows]


OF_SETTINGS = [
    *_settings(
        AGENT,
        True,
        ("algorithm", Choice("q_learning"), "q_learning", "Learning rule."),
        ("learning_rate", Schedule(), 0.1, "Step size; per_visit:0.7 is n^-0.7 and converges."),
        ("discount_factor", Real(), 0.99, "From 0 to 1."),
        ("epsilon", Schedule(), 0.1, "Chance of a random action; a schedule follows the global step."),
        ("seed", Whole(0), None, "Of all random numbers; drawn if left out."),
        ("dtype", Choice("float64", "float32"), "float64", "Of the table."),
        ("state_size", Whole(1), None, "Rows of the table; by default what the environment needs."),
        ("action_size", Whole(1), None, "Columns, likewise."),
        ("use_action_mask", Flag(), None, "Follow action masks; by default yes, except Taxi's."),
        ("replay_ratio", Real(), 0.0, "Replayed updates per step."),
        ("buffer_size", Whole(1), 10_000, "Transitions that each worker keeps for replay."),
        ("batch_size", Whole(1), 32, "Transitions per update."),
        ("n_envs", Whole(1), 16, "Copies per worker of an environment that is stepped."),
        ("async_updates", Flag(), True, "No: the same table bit for bit on any number of ranks."),
        ("logical_workers", Whole(1), 16, "Of that reproducible mode."),
    ),
    *_settings(
        TALKING,
        False,
        ("sync_frequency", WholeOr("auto"), "auto", "Updates of a worker between two pushes."),
        ("compression_threshold", Real(), 0.0, "Changes of values below this may wait."),
        ("prefetch_factor", Whole(1), 2, "Pushes in flight per worker."),
        ("communication_backend", Choice("mpi"), "mpi", "What carries messages."),
        ("timeout", Real(), 600.0, "Seconds without progress after which a rank counts as lost."),
        ("heartbeat_interval", Real(), 1.0, "Seconds of silence after which a rank says that it is there."),
        ("heartbeat_timeout", Real(), 30.0, "Seconds of silence after which a rank counts as lost."),
        ("on_failure", Choice("continue", "replace", "abort"), "continue", "What a lost worker means."),
        ("min_workers", Whole(0), 0, "With fewer the run ends."),
        ("max_replacements", Whole(0), 3, "Most ranks started anew where --on-failure is replace."),
        ("on_error", Choice("raise", "exclude"), "raise", "What an exception in an environment means."),
        ("allow_singletons", Flag(), False, "Train alone although several ranks were promised."),
    ),
]

OF_TRAIN = [
    Option("total_steps", Whole(1, most=2**62 - 1), 10_000_000, "Steps of all ranks together.", RUN),
    *_settings(
        SAVING,
        False,
        ("checkpoint_dir", Folder(), None, "Folder or URL; by default checkpoints in the run's folder."),
        ("checkpoint_interval", StepsOrTime(), "30s", "Between checkpoints."),
        ("keep_last", Whole(1), 3, "How many of the newest checkpoints stay."),
        ("keep_every", Whole(1), None, "Besides, keep every so many-th for good."),
        ("resume", Choice("auto", "must", "never"), "auto", "Go on from a checkpoint: if there is one, ..."),
        ("strict", Flag(), True, "Refuse checkpoints of something else."),
        ("time_limit", Time(), None, "Stop in order after a time; by default SLURM's limit."),
        ("stop_signals", Names(), ("SIGUSR1", "SIGUSR2", "SIGTERM"), "Signals that stop it in order."),
        ("checkpoint_mode", Mode(), 0o600, "Permissions of the checkpoints."),
        ("leave_signals", Names(), (), "Signals on which a worker leaves, and the others go on."),
    ),
    Option("progress_interval", Real(0.0), 1.0, "Seconds between two records.", SHOWING),
]

OF_COMMAND = [
    *_settings(
        SHOWING,
        False,
        (
            "eval_every",
            Whole(1),
            None,
            "Steps between evaluations of the greedy policy; the best model is kept.",
        ),
        ("eval_episodes", Whole(1), 100, "Episodes of each evaluation, and of the last one."),
        ("stop_at_return", Real(), None, "End the run when its recent mean return is this high."),
        ("tensorboard", Flag(), False, "Write TensorBoard's records; needs the extra tensorboard."),
        ("log_interval", Real(0.0), 30.0, "Seconds between two log lines, where there is no bar."),
        ("log_dir", Folder(), None, "Where each rank logs; by default logs in the run's folder."),
    ),
]

OPTIONS = {option.name: option for option in (*OF_TRAIN, *OF_SETTINGS, *OF_COMMAND)}
"""By name, all that a configuration may hold besides the environment and the number of ranks."""
