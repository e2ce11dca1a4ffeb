"""What an examination found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """What was found of one thing."""

    check: str  # what was looked at
    status: Status
    found: str
    remedy: str = ""  # what to do; empty where nothing is to be done
    data: dict[str, Any] | None = None  # what was measured, for programs, where it is more than the text has

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; without `data` where there is none."""
        return {key: value for key, value in asdict(self).items() if key != "data" or value is not None}


def ok(check: str, found: str, data: dict[str, Any] | None = None) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, "ok", found, "", data)


def warning(check: str, found: str, remedy: str, data: dict[str, Any] | None = None) -> Finding:
    """Return a finding of something that works, but not as well as it might."""
    return Finding(check, "warning", found, remedy, data)


def failure(check: str, found: str, remedy: str, data: dict[str, Any] | None = None) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(check, "failure", found, remedy, data)


def is_fit(findings: Iterable[Finding]) -> bool:
    """Return whether nothing has failed."""
    return all(finding.status != "failure" for finding in findings)
