"""The names of checkpoints, which say which of two is the newer one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class CheckpointName:
    """A checkpoint's name; sorted by fence, then sequence: a server that was replaced may write late."""

    fence: int
    sequence: int
    steps: int
    run: str

    def __str__(self) -> str:
        return f"f{self.fence:06d}-c{self.sequence:08d}-step{self.steps:015d}-{self.run}"

    @classmethod
    def parse(cls, name: str) -> CheckpointName | None:
        """Return what `name` says, or None if no checkpoint is named like that."""
        match = re.fullmatch("f([0-9]{6,18})-c([0-9]{8,18})-step([0-9]{15,19})-([0-9a-f]{8})", name)
        if match is None:
            return None
        fence, sequence, steps, run = match.groups()
        parsed = cls(int(fence), int(sequence), int(steps), run)
        return parsed if str(parsed) == name else None


def checkpoints_in(listed: Iterable[str]) -> list[CheckpointName]:
    """Return the checkpoints, complete or not, among the names in a folder, oldest first."""
    return sorted(name for name in map(CheckpointName.parse, listed) if name is not None)
