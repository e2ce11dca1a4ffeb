"""Damages checkpoints at random: what is read must be what was written, or be refused.

``python tests/unit/checkpoint_fuzz.py --seconds 600`` does so for ten minutes and prints what happened.
"""

import argparse
import hashlib
import json
import logging
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.errors import CheckpointError, CheckpointUnreadableError

ODD_VALUES = (
    None,
    True,
    -1,
    0,
    2**80,
    1.5,
    "",
    "../../etc/passwd",
    "q_table.npy",
    "/dev/zero",
    "O",
    "|O",
    ">f8",
    "<f4",
    [],
    [2**40, 2**40],
    [-1, -6],
    [12],
    [3.0, 4],
    [0, 2**70],
    [1] * 40 + [12],
    {},
    {"file": 3},
    "\ud800",
)


def arrays_of(seed):
    rng = np.random.default_rng(seed)
    return {
        "q_table": rng.normal(size=(3, 4)),
        "visits": rng.integers(0, 99, (3, 4)),
        "legal": rng.integers(0, 2, (3, 4)).astype(bool),
    }


def same(one, other):
    return set(one) == set(other) and all(
        one[key].dtype == other[key].dtype
        and one[key].shape == other[key].shape
        and one[key].tobytes() == other[key].tobytes()
        for key in one
    )


class Specimen:
    """Two checkpoints, of which the newer is damaged and made whole again."""

    def __init__(self, location):
        self.location = Path(location)
        folder = self.folder()
        folder.fence.claim()
        folder.write(arrays_of(1), {"steps": 10, "note": "the older"}, "0123abcd")
        folder.write(arrays_of(2), {"steps": 20, "note": "the newer \u00e9"}, "0123abcd")
        self.names = folder.names()
        self.saved = [folder.read(name) for name in self.names]
        self.place = self.location / "agent-0" / self.names[0]
        self.whole = {path.name: path.read_bytes() for path in sorted(self.place.iterdir())}

    def folder(self):
        return CheckpointFolder(self.location, "agent-0")

    def restore(self):
        for path in self.place.iterdir():
            if path.name not in self.whole:
                path.unlink()
        for name, data in self.whole.items():
            (self.place / name).write_bytes(data)

    def outcome(self, files, forged=False):
        """Put `files` into the newer checkpoint; return what is read, after checking that it may be."""
        try:
            for name, data in files.items():
                (self.place / name).write_bytes(data)
            try:
                self.folder().read(self.names[0])
                refused = False
            except CheckpointUnreadableError as error:
                assert forged and "its format version is " in str(error)
                try:
                    self.folder().read_newest()
                except CheckpointUnreadableError:
                    return "of another version"
                raise
            except CheckpointError as error:
                refused = True
                assert "is no usable checkpoint: " in str(error)
                str(error).encode()
            saved = self.folder().read_newest()
        finally:
            self.restore()
        expected = self.saved[1 if refused else 0]
        assert saved.name == expected.name
        if forged and not refused:  # its manifest may leave arrays out
            expected_arrays = {key: expected.arrays[key] for key in saved.arrays}
            assert all(type(saved.body[key]) is int for key in ("fence", "sequence", "steps"))
        else:
            expected_arrays = expected.arrays
            assert saved.body == expected.body
        assert same(saved.arrays, expected_arrays)
        return "refused" if refused else "read all the same"

    # Kinds of damage: each returns what to put where

    def flips(self, rng):
        name = rng.choice(list(self.whole))
        data = bytearray(self.whole[name])
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        return {name: bytes(data)}

    def cut(self, rng):
        name = rng.choice(list(self.whole))
        return {name: self.whole[name][: rng.randrange(len(self.whole[name]))]}

    def lengthened(self, rng):
        name = rng.choice(list(self.whole))
        position = rng.randint(0, len(self.whole[name]))
        data = self.whole[name]
        return {name: data[:position] + rng.randbytes(rng.randint(1, 300)) + data[position:]}

    def hole(self, rng):
        name = rng.choice(list(self.whole))
        data = self.whole[name]
        start, end = sorted(rng.choices(range(len(data) + 1), k=2))
        filling = rng.choice((b"", bytes(end - start), b"[" * (end - start), b"\xff" * (end - start)))
        return {name: data[:start] + filling + data[end:]}

    def exchanged(self, rng):
        one, other = rng.sample(list(self.whole), 2)
        return {one: self.whole[other], other: self.whole[one]}

    def odd_manifest(self, rng):
        """A manifest whose checksum is right and whose content is not."""
        body = json.loads(self.whole["manifest.json"])["body"]
        for _ in range(rng.choice((1, 1, 2))):
            place = body
            while True:
                key = rng.choice(list(place))
                if not isinstance(place[key], dict) or not place[key] or rng.random() < 0.2:
                    break
                place = place[key]
            if rng.random() < 0.2:
                del place[key]
                break
            if rng.random() < 0.2:
                place[rng.choice(("x", "../x", "Q", "", "steps"))] = place.pop(key)
                break
            place[key] = rng.choice(ODD_VALUES)
        return {"manifest.json": manifest(body)}

    def odd_header(self, rng):
        """An array file with a damaged header, of which the manifest holds the right checksum."""
        name = rng.choice([name for name in self.whole if name.endswith(".npy")])
        data = bytearray(self.whole[name])
        for _ in range(rng.choice((1, 1, 2, 6))):
            data[rng.randrange(128)] = rng.choice((rng.randrange(256), *b"0123456789()[]{}'<>|fiObTF, "))
        body = json.loads(self.whole["manifest.json"])["body"]
        entry = body["arrays"][name.removesuffix(".npy")]
        entry["sha256"] = hashlib.sha256(data).hexdigest()
        return {name: bytes(data), "manifest.json": manifest(body)}


def manifest(body):
    """Return a manifest for `body` with a checksum that is right."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({"body": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


KINDS = ("flips", "cut", "lengthened", "hole", "exchanged", "odd_manifest", "odd_header")


def fuzz(specimen, rng, kind):
    """Do one kind of damage once and return what was read."""
    files = getattr(specimen, kind)(rng)
    try:
        return specimen.outcome(files, forged=kind.startswith("odd"))
    except BaseException:
        print(f"{kind}: {files}")
        raise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    logging.getLogger("dist_classicrl").setLevel(logging.ERROR)
    print(f"seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    counts = Counter()
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as location:
        specimen = Specimen(location)
        while time.monotonic() < end:
            kind = rng.choice(KINDS)
            counts[kind, fuzz(specimen, rng, kind)] += 1
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:14} {outcome:18} {count}")
    print(f"{sum(counts.values())} damaged checkpoints; none was taken for another")


if __name__ == "__main__":
    main()
