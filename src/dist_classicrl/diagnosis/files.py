"""Whether checkpoints and compiled code can be kept: the checkpoint folder and numba's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dist_classicrl.diagnosis.children import make_trial
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.memory import bytes_text, checkpoint_bytes
from dist_classicrl.diagnosis.plan import TrainingPlan

_SLOW_SECONDS = 1.0
_IN_MEMORY = ("tmpfs", "ramfs")

CACHE_UNUSED = (
    "compiled code is not kept: other users may write to its place, or it cannot be written; every process "
    "compiles anew"
)
OWN_CACHE = "Let NUMBA_CACHE_DIR name a folder that only you may write to (chmod 700)."


@dataclass
class Traces:
    """What the examination has left in a folder for ranks to look for."""

    file: str = ""  # a path; empty where there is none to look for
    made: tuple[str, ...] = ()  # what `trials.remove` needs to remove everything again

    def remove(self, seconds: float) -> None:
        """Remove everything again."""
        if self.made:
            make_trial("remove", *self.made, seconds=seconds)
            self.made = ()


def examine_folder(traces: Traces, plan: TrainingPlan) -> Iterator[Finding]:
    """Try in the checkpoint folder what checkpoints need; `traces` says what is left there."""
    check = "checkpoint folder"
    shown = plan.checkpoint_dir
    child = make_trial("folder", plan.checkpoint_dir, seconds=plan.seconds)
    said = child.data
    if said is None:
        yield failure(
            check,
            f"{shown} does not answer: {child.trouble}",
            "Give another --checkpoint-dir; a file system that hangs would hold up the server at its end.",
        )
        return
    traces.made = (plan.checkpoint_dir, said["name"], *said["missing"])
    if "error" in said:
        yield failure(check, said["error"], "Give another --checkpoint-dir.")
        return
    traces.file = os.path.join(said["path"], "state") if "path" in said else ""
    broken = [text for key, text in _NEEDS.items() if not said[key]]
    if broken:
        yield failure(
            check,
            f"{shown}: {'; '.join(broken)}",
            "Give a --checkpoint-dir on another file system: checkpoints would be lost or mixed up here.",
        )
        return
    yield _speed(check, shown, said)
    if "free" in said:
        yield _space(plan, int(said["free"]))


_NEEDS = {
    "replaced": "a renamed file does not take the place of the old one",
    "exclusive": "two processes can both create the same file, so two servers could write at a time",
    "listed": "files that were written are not listed at once",
}


def _speed(check: str, shown: str, said: dict[str, Any]) -> Finding:
    seconds, kind = said["seconds"], said.get("kind", "")
    text = f"{shown}: rename, fsync, listing and exclusive files work; {seconds * 1e3:.3g} ms per small file"
    if kind:
        text += f" ({kind})"
    if seconds > _SLOW_SECONDS:
        return warning(
            check,
            f"slow: {text}",
            "Give a faster --checkpoint-dir, or a longer --checkpoint-interval. Training does not wait for "
            "it, but checkpoints are rarer.",
        )
    if kind in _IN_MEMORY:
        return warning(
            check,
            f"in memory: {text}",
            "Give a --checkpoint-dir on a disk: this one is empty after a restart.",
        )
    return ok(check, text)


def _space(plan: TrainingPlan, free: int) -> Finding:
    check = "checkpoint space"
    if plan.states is None or plan.actions is None:
        return ok(check, f"{bytes_text(free)} free; give --states and --actions to compare")
    # Those that stay, and the one that is being written.
    number = plan.keep_last + 1
    needed = number * checkpoint_bytes(plan)
    text = f"{number} checkpoints need {bytes_text(needed)}, and {bytes_text(free)} are free"
    if needed > free:
        fewer = ", or keep fewer (--keep-last 1, here and to train)" if plan.keep_last > 1 else ""
        return failure(check, text, f"Make room, give another --checkpoint-dir{fewer}.")
    return ok(check, text)


def examine_state_folder(traces: Traces, plan: TrainingPlan) -> Iterator[Finding]:
    """Leave a file in the folder in which ranks tell their launcher how they end, or say why not."""
    child = make_trial("folder", plan.state_dir, seconds=plan.seconds)
    said = child.data or {"error": child.trouble}
    if "missing" in said:
        traces.made = (plan.state_dir, said["name"], *said["missing"])
    if "path" in said:
        traces.file = os.path.join(said["path"], "state")
    if "error" in said:
        yield failure(
            "state folder",
            f"{plan.state_dir} cannot be used: {said['error']}",
            "Give another --state-dir, here and to train and launch: ranks tell there how they end.",
        )


def examine_cache(seconds: float) -> Finding:
    """Look where numba keeps compiled code, and whether it can."""
    check = "numba's cache"
    child = make_trial("cache", seconds=seconds)
    said = child.data
    elsewhere = "Set NUMBA_CACHE_DIR to a folder that this user may write to and all hosts see."
    if said is None:
        return failure(check, f"compiled code cannot be loaded: {child.trouble}", elsewhere)
    if "error" in said:
        return failure(check, f"compiled code cannot be loaded: {said['error']}", elsewhere)
    if said["disabled"]:
        return warning(check, "NUMBA_DISABLE_JIT is set: nothing is compiled", "unset NUMBA_DISABLE_JIT.")
    if "unused" in said:
        return warning(check, CACHE_UNUSED, OWN_CACHE)
    path, wanted = said["path"], said["wanted"]
    if "unwritable" in said:
        return failure(check, f"{path} cannot be written to: {said['unwritable']}", elsewhere)
    if wanted and not os.path.abspath(path).startswith(os.path.join(os.path.abspath(wanted), "")):
        return warning(
            check,
            f"NUMBA_CACHE_DIR={wanted} cannot be written to; numba takes {path} in its place",
            f"{elsewhere} Or unset it.",
        )
    return ok(check, str(path))
