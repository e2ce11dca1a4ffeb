"""The folder of a study: who makes which runs, and what came out of them, safe for many hosts at once.

There is no server and no lock. A process that takes runs makes a claim, a file that can be made only once,
by a hard link, which NFS does as well; and it appends what came out to a file of its own. A claim counts
while its owner shows that it lives, by the time of its file; then another process makes the next claim on the
same runs. Two that make the same run by accident write the same record, of which one is read: no result
depends on who did what and when. Nothing that was written is changed: who makes failed runs once more writes
down which records count no longer.
"""

from __future__ import annotations

import glob
import json
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dist_classicrl._files import whole_file
from dist_classicrl.errors import StudyError
from dist_classicrl.monitoring.machine import this_machine
from dist_classicrl.sweep.kept.differences import differences, text
from dist_classicrl.sweep.kept.environment_code import Code, keep_code
from dist_classicrl.sweep.kept.more_seeds import MORE_SEEDS, addition, new_seeds, seeds_after, with_added
from dist_classicrl.sweep.kept.reading import read_kept, readable
from dist_classicrl.sweep.kept.records import records_in

PLAN = "study.json"
_NOT_OF_ALL = {"numbered", "search"}  # what the plan of a study may do without
_SEEDS = {"seeds", "added"}  # of a plan
_PROPOSED = "proposed"
_RETRIES = "retries"
_BEAT_SECONDS = 5.0
_MAKER = "maker"  # of the line in a file of records that tells of the process
_SILENCE_SECONDS = 60.0  # several beats: NFS may show a file as it was some seconds ago
_LEAVE_SECONDS = 5.0  # for which the heartbeat is waited for: it may hang in a file server that is gone
_ABOUT_A_PROCESS = "/proc/{}/stat"  # of proc(5)


def studies_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of studies that lie in this one, in order."""
    return sorted(path.parent for path in Path(folder).glob(f"*/{PLAN}"))


class StudyFolder:
    """What lies in the folder of a study: plan, added seeds, claims, members, records, proposed settings."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read: dict[str, int] = {}  # how far each file of records was read
        self._records: dict[str, dict[str, Any]] = {}
        #: Of each run all records of failures, by who made it and how many of his came before.
        self._failures: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
        self._retries: dict[str, set[str]] = {}  # the runs that each process has made count no longer
        self._forgotten: set[tuple[str, str, int]] = set()  # maker, run and number of a failure
        #: How many records have been found that count no longer, or that others have replaced.
        self.withdrawn = 0

    def begin(self, plan: Mapping[str, Any], code: Code | None = None) -> dict[str, Any]:
        """Make the folder, or find the same study there, and return its plan, with seeds that are new to it.

        `code` is that of the environments, which is written down where the folder is made.
        StudyError if it holds another study, one of other seeds, or one to which none can be added.
        """
        try:
            for name in ("claims", "members", "records", _PROPOSED, _RETRIES, MORE_SEEDS):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            if code is not None and not (self.path / PLAN).exists():
                keep_code(self.path, code)
            with suppress(FileExistsError):
                make_once(self.path / PLAN, text(plan))
            while True:
                there = self.plan()
                self._check_same(there, plan)
                if not (more := new_seeds(self.path, there, plan.get("seeds", ()))):
                    return there
                with suppress(FileExistsError):  # somebody else has just added some
                    make_once(addition(self.path, len(there["seeds"])), json.dumps(more))
        except OSError as error:
            raise StudyError(
                f"The study cannot be kept in {self.path} ({error.strerror}). Give a folder that this user "
                "may write to."
            ) from error

    def holds(self, plan: Mapping[str, Any]) -> bool:
        """Return whether this very study is here, with whatever seeds."""
        try:
            self._check_same(self.plan(), plan)
        except StudyError:
            return False
        return True

    def _check_same(self, there: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Raise `StudyError` unless one plan is the other, but for seeds."""
        if missing := plan.keys() - there.keys() - _NOT_OF_ALL:
            raise StudyError(
                f"{self.path / PLAN} is none that `dist-classicrl sweep` or Sweep has written: it lacks "
                f"{', '.join(sorted(missing))}. Give another folder."
            )
        theirs, ours = ({key: each[key] for key in each if key not in _SEEDS} for each in (there, plan))
        if text(theirs) != text(ours):
            found = "; ".join(differences(theirs, ours)) or "its contents differ"
            raise StudyError(
                f"The folder {self.path} holds another study: {found}. Give it as it was to go on with that "
                "one, or another folder for a study of its own."
            )

    def plan(self) -> dict[str, Any]:
        """Return what `begin` has written; StudyError if there is nothing."""
        if (data := read_kept(self.path / PLAN)) is None:
            inside = studies_in(self.path)
            named = f" Name one of the studies in it, such as {inside[0]}." if inside else ""
            raise StudyError(f"There is no study in {self.path}: it has no {PLAN}.{named}")
        try:
            plan = json.loads(data)
            if not isinstance(plan, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            raise StudyError(f"{self.path / PLAN} is damaged ({error}).") from error
        environments = plan.get("environments")
        if isinstance(environments, dict) and len(environments) > 1 and "numbered" not in plan:
            raise StudyError(
                f"{self.path} holds a study of several environments by an earlier version, which may show "
                "what one gave under the name of another. Make it anew, in another folder."
            )
        return with_added(self.path, plan)

    def seeds_after(self, seeds: Sequence[int]) -> list[int]:
        """Return the seeds that were added when the study had these; none where it still has."""
        return seeds_after(self.path, seeds)

    def proposed(self, number: int) -> dict[str, Any] | None:
        """Return the settings of this number that somebody has decided, and what they were drawn from."""
        if (data := read_kept(self._proposed(number))) is None:
            return None
        try:
            found: dict[str, Any] = json.loads(data)
            if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
                raise ValueError("no settings")
        except ValueError as error:
            raise StudyError(
                f"{self._proposed(number)} is damaged ({error}). Remove it to have settings proposed anew."
            ) from error
        return found

    def propose(self, number: int, data: Mapping[str, Any]) -> None:
        """Decide settings, if nobody has: `proposed` has what counts."""
        with written(self.path), suppress(FileExistsError):
            make_once(self._proposed(number), json.dumps(data, sort_keys=True))

    def _proposed(self, number: int) -> Path:
        return self.path / _PROPOSED / f"{number}.json"

    def is_claimed(self, parcel: str) -> bool:
        """Whether somebody has ever taken the runs of this name."""
        return (self.path / "claims" / f"{parcel}.0").exists()

    @property
    def records_read(self) -> Mapping[str, dict[str, Any]]:
        """The records that `records` has found last."""
        return self._records

    def longest_seconds(self) -> float:
        """Return for how many seconds the longest run was under way that `records` has found."""
        return max((each.get("seconds", 0.0) for each in self._records.values()), default=0.0)

    def excuse(self, pid: int) -> None:
        """Let a process of this host that was ended count as one that left: its runs have ended nobody."""
        members = self.path / "members"
        for path in members.glob(f"{glob.escape(socket.gethostname())}.{pid}.*"):
            path.unlink(missing_ok=True)

    def forget_failed(self, name: str, lives: Callable[[str], bool]) -> bool:
        """Let runs that have failed count as not made, so that they are made again; return whether any has.

        Not those which another process that `lives` has let count so before: it, or who works with it, has
        made them again since. `name` is that of this process, which does so only once.
        """
        self.records()
        self._withdraw()  # what is known to be made again was let count so before
        others = set().union(*(keys for other, keys in self._retries.items() if lives(other)))
        failed = [
            [maker, key, number]
            for key, record in self._records.items()
            if record["error"] is not None and key not in others
            for maker, number in self._failures[key]
        ]
        if failed:
            with written(self.path), whole_file(self.path / _RETRIES / f"{name}.json") as file:
                file.write(json.dumps(failed).encode())
            self._withdraw()
        return bool(failed)

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the records of all runs that are known, by the key of the run; reads only what is new."""
        for _ in self.news():
            pass
        return self._records

    def news(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield who made it and what came out, of each run that is known now and was not before.

        A run that failed comes once more when it has been made again.
        """
        self._withdraw()
        for path in self._record_files():
            for record in self._news(path):
                if self._takes(path.stem, record):
                    yield path.stem, record

    def _record_files(self) -> list[Path]:
        folder = self.path / "records"
        with suppress(FileNotFoundError), readable(folder):
            return sorted(folder / name for name in os.listdir(folder) if name.endswith(".jsonl"))
        return []

    def _takes(self, maker: str, record: dict[str, Any]) -> bool:
        """Take in a record, and return whether it counts: what ended well does so in place of a failure."""
        key = record["key"]
        known = self._records.get(key)
        if record["error"] is not None:
            failures = self._failures.setdefault(key, {})
            number = sum(one == maker for one, _ in failures)
            failures[maker, number] = record
            if known is not None or (maker, key, number) in self._forgotten:
                return False
        elif known is not None:
            if known["error"] is None:
                return False
            self.withdrawn += 1
        self._records[key] = record
        return True

    def _withdraw(self) -> None:
        """Find out which records of failures count no longer."""
        for path in (self.path / _RETRIES).glob("*.json"):
            if path.stem in self._retries:
                continue
            data = read_kept(path) or b""
            try:
                forgotten = {(str(maker), str(key), int(n)) for maker, key, n in json.loads(data)}
            except (ValueError, TypeError):  # its host was lost before that was on disk
                forgotten = set()
            self._retries[path.stem] = {key for _, key, _ in forgotten}
            self._forgotten |= forgotten
            for key in self._retries[path.stem]:
                self._count_anew(key)

    def _count_anew(self, key: str) -> None:
        """Let the first failure of a run count that was not forgotten, if it did not end well."""
        known = self._records.get(key)
        if known is None or known["error"] is None:
            return
        left = (
            each for by, each in self._failures[key].items() if (by[0], key, by[1]) not in self._forgotten
        )
        counting = next(left, None)
        if counting is known:
            return
        self.withdrawn += 1
        if counting is None:
            del self._records[key]
        else:
            self._records[key] = counting

    def _news(self, path: Path) -> Iterator[dict[str, Any]]:
        begin = self._read.get(path.name, 0)
        data = read_kept(path, begin) or b""
        # The last line of a process that was killed, or is writing, may be a part of one.
        end = data.rfind(b"\n") + 1
        self._read[path.name] = begin + end
        yield from records_in(data[:end])

    def makers(self) -> list[dict[str, Any]]:
        """Return what is known of each process that made runs, and how many `runs` it wrote down."""
        found = []
        self._withdraw()
        forgotten = Counter(maker for maker, *_ in self._forgotten)
        for path in self._record_files():
            data = read_kept(path) or b""
            head, _, _ = data.partition(b"\n")
            try:
                about = json.loads(head)[_MAKER]
                found.append({"runs": sum(1 for _ in records_in(data)) - forgotten[path.stem], **about})
            except (ValueError, TypeError, KeyError):  # its host was lost before that was on disk
                continue
        return found


class Member:
    """A process that takes part in a study; used in a ``with`` block.

    `silence` is after how many seconds without a sign another host's process counts as lost.
    """

    def __init__(self, folder: StudyFolder, silence: float = _SILENCE_SECONDS) -> None:
        self._folder, self._silence = folder, silence
        self.name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        self._file = folder.path / "members" / self.name
        self._records: Any = None
        self._done = threading.Event()
        self._beat = threading.Thread(target=self._show_life, daemon=True)
        #: When the file of each other member was last seen to change, by this process's clock.
        self._seen: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> Member:
        about = {"host": socket.gethostname(), "pid": os.getpid(), "start": _start_of(os.getpid())}
        try:
            with written(self._folder.path), whole_file(self._file) as file:
                file.write(json.dumps(about).encode())
            self._beat.start()
        except BaseException:  # a signal's, which may come when the file is there
            with suppress(OSError):
                self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._done.set()
            self._beat.join(_LEAVE_SECONDS)
            if self._records is not None:
                with suppress(OSError):  # what could not be written was said, and such a run is made again
                    self._records.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._done.set()
        self._file.unlink(missing_ok=True)

    def _show_life(self) -> None:
        while not self._done.wait(min(_BEAT_SECONDS, self._silence / 4.0)):
            with suppress(OSError):
                os.utime(self._file)

    def claim(self, parcel: str) -> bool:
        """Take the runs of this name, and return whether they are this process's now.

        They are not where a process that lives has them. The folder knows the records of who had them before.
        """
        claims = self._folder.path / "claims"
        owners = self._owners(parcel)
        if owners:
            if owners[-1] == self.name:
                return True
            if self._lives(owners[-1]):
                return False
            self._folder.records()
        mark = claims / f".{self.name}"
        with written(self._folder.path):
            if not mark.exists():
                with whole_file(mark) as file:  # half a name would be nobody's
                    file.write(self.name.encode())
            try:
                os.link(mark, claims / f"{parcel}.{len(owners)}")
            except FileExistsError:
                return False
        return True

    def lost_owners(self, parcel: str) -> int:
        """Return how many others that had taken the runs of this name have left no word that they ended."""
        members = self._folder.path / "members"
        return sum(owner != self.name and (members / owner).exists() for owner in self._owners(parcel))

    def _owners(self, parcel: str) -> list[str]:
        """Return who has made claims on a parcel, the newest last."""
        claims, owners = self._folder.path / "claims", list[str]()
        while (name := read_kept(claims / f"{parcel}.{len(owners)}")) is not None:
            owners.append(name.decode())
        return owners

    def _lives(self, owner: str) -> bool:
        path = self._folder.path / "members" / owner
        data = read_kept(path) or b""
        try:
            about = json.loads(data)
            host, pid, start = about["host"], int(about["pid"]), about["start"]
            changed = path.stat().st_mtime
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return False
        if host == socket.gethostname() and (there := _start_of(pid)) is not None:
            return bool(there == start)
        if host == socket.gethostname() and os.path.exists(_ABOUT_A_PROCESS.format("self")):
            return False
        now = time.monotonic()
        before, since = self._seen.get(owner, (changed, now))
        self._seen[owner] = (changed, since if changed == before else now)
        return now - self._seen[owner][1] < self._silence

    def forget_failed(self) -> bool:
        """Let runs that have failed count as not made, see `StudyFolder.forget_failed`."""
        return self._folder.forget_failed(self.name, self._is_at_work)

    def _is_at_work(self, other: str) -> bool:
        """Whether another process lives, by a first look."""
        with suppress(OSError):
            # By one clock, if the folder is another host's.
            os.utime(self._file)
            silent = self._file.stat().st_mtime - (self._folder.path / "members" / other).stat().st_mtime
            return silent < self._silence and self._lives(other)
        return False

    def keep(self, record: Mapping[str, Any]) -> None:
        """Write down what came out of a run; StudyError where there is no room for it."""
        with written(self._folder.path):
            if self._records is None:
                path = self._folder.path / "records" / f"{self.name}.jsonl"
                self._records = open(path, "ab")
                self._records.write(json.dumps({_MAKER: this_machine()}).encode() + b"\n")
            self._records.write(json.dumps(record, sort_keys=True).encode() + b"\n")
            self._records.flush()

    def make_durable(self) -> None:
        """Bring to disk what was written down."""
        if self._records is not None:
            with written(self._folder.path):
                os.fsync(self._records.fileno())


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Turn what the system says of a file of a study that could not be written into a StudyError."""
    try:
        yield
    except OSError as error:
        raise StudyError(
            f"What a study writes down cannot be written to {folder} ({error.strerror}). Make room there, or "
            "let this user write to it: the same study with the same folder goes on with what is there."
        ) from error


def make_once(path: Path, text: str) -> None:
    """Make a file whole, or not if there is one: FileExistsError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with whole_file(temporary) as file:
            file.write(text.encode())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _start_of(pid: int) -> str | None:
    """Return when a process of this host was started, by the kernel's clock; None if there is none."""
    try:
        with open(_ABOUT_A_PROCESS.format(pid)) as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]  # state, and starttime of proc(5)
