"""Damaged checkpoints: whatever is read is what was written, and nothing in a file is ever run."""

import hashlib
import io
import json
import logging
import os
import pickle
import random

import checkpoint_fuzz
import numpy as np
import pytest
from checkpoint_fuzz import Specimen, manifest

from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.errors import CheckpointError, CheckpointUnreadableError


@pytest.fixture
def specimen(tmp_path, caplog):
    caplog.set_level(logging.ERROR, "dist_classicrl")  # thousands of warnings take their time
    return Specimen(tmp_path)


@pytest.mark.slow
def test_every_truncation_of_every_file_is_refused(specimen):
    for name, data in specimen.whole.items():
        for size in range(len(data)):
            assert specimen.outcome({name: data[:size]}) == "refused", (name, size)
    assert specimen.folder().read_newest().name == specimen.names[0]


def test_every_missing_file_is_named(specimen):
    for name, data in specimen.whole.items():
        (specimen.place / name).unlink()
        with pytest.raises(CheckpointError, match=f"no usable checkpoint: .*{name}"):
            specimen.folder().read(specimen.names[0])
        (specimen.place / name).write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", checkpoint_fuzz.KINDS)
def test_random_damage_is_refused_or_harmless(specimen, kind):
    rng = random.Random(2026)
    outcomes = [checkpoint_fuzz.fuzz(specimen, rng, kind) for _ in range(400)]
    assert outcomes.count("refused") > 200


def test_with_all_checkpoints_damaged_the_error_names_them_and_says_what_to_do(specimen):
    for name in specimen.names:
        path = specimen.location / "agent-0" / name / "q_table.npy"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="another checkpoint_dir or move these folders away") as caught:
        specimen.folder().read_newest()
    assert all(name in str(caught.value) for name in specimen.names)


def test_each_skipped_checkpoint_is_warned_of_once(specimen, caplog):
    path = specimen.place / "visits.npy"
    path.write_bytes(path.read_bytes()[:-1])
    caplog.set_level(logging.WARNING, "dist_classicrl")
    folder = specimen.folder()
    for _ in range(3):
        assert folder.read_newest().name == specimen.names[1]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "visits.npy is damaged: it has 223 bytes instead of 224" in record.message
    assert record.message.endswith(f"Using {specimen.names[1]} instead.")


class Trap:
    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


@pytest.mark.parametrize("dtype", ["|O", "<f8"])
def test_a_pickled_array_with_right_checksums_is_refused_and_nothing_in_it_run(specimen, dtype):
    file = io.BytesIO()
    np.save(file, np.array([Trap()], dtype=object), allow_pickle=True)
    data = file.getvalue()
    body = json.loads(specimen.whole["manifest.json"])["body"]
    # Sizes that fit, where the type claims to be a plain one.
    body["arrays"]["q_table"].update(
        bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), dtype=dtype, shape=[(len(data) - 128) // 8]
    )
    assert specimen.outcome({"q_table.npy": data, "manifest.json": manifest(body)}) == "refused"
    assert not Trap.sprung
    (specimen.place / "q_table.npy").write_bytes(data)
    np.load(specimen.place / "q_table.npy", allow_pickle=True)  # the trap works
    assert Trap.sprung
    Trap.sprung = False
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(specimen.whole["q_table.npy"])


@pytest.mark.parametrize(
    "old, new, dtype, shape, why",
    [
        (b"<f8", b"<i8", "<f8", [3, 4], "its header and the manifest contradict each other"),
        (b"<f8", b"<f8", "<f8", [4, 3], "its header and the manifest contradict each other"),
        (b"<f8", b"<f8", "<i8", [3, 4], "its header and the manifest contradict each other"),
        (b"False", b"True ", "<f8", [3, 4], "its header and the manifest contradict each other"),
        (b"NUMPY", b"NUMPX", "<f8", [3, 4], "it is no .npy file of version 1.0"),
        (b"NUMPY\x01", b"NUMPY\x02", "<f8", [3, 4], "it is no .npy file of version 1.0"),
        (b"<f8", b">f8", ">f8", [3, 4], "its type is '>f8', allowed are <f8"),
        (b"<f8", b"<c8", "<c8", [3, 4], "its type is '<c8', allowed are <f8"),
        (b"{'descr'", b"{(lambda", "<f8", [3, 4], "q_table.npy is damaged: its header cannot be read"),
    ],
)
def test_a_header_with_a_right_checksum_must_still_fit(specimen, old, new, dtype, shape, why):
    data = specimen.whole["q_table.npy"].replace(old, new, 1)
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["arrays"]["q_table"].update(sha256=hashlib.sha256(data).hexdigest(), dtype=dtype, shape=shape)
    (specimen.place / "q_table.npy").write_bytes(data)
    (specimen.place / "manifest.json").write_bytes(manifest(body))
    with pytest.raises(CheckpointError, match=why):
        specimen.folder().read(specimen.names[0])


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"body": {}, "sha256": NaN}',
        b'{"body": {"x": 1e999}, "sha256": ""}',
        b'{"body": {"x": "\\ud800"}, "sha256": "\\ud800"}',
        b'{"body": {"x": ' + b"9" * 10_000 + b'}, "sha256": ""}',
        b"\xff\xfe{}",
        b"null",
        b"",
    ],
    ids=range(9),
)
def test_a_manifest_that_is_no_plain_json_is_refused(specimen, text):
    assert specimen.outcome({"manifest.json": text}) == "refused"


def test_a_huge_manifest_is_not_read_whole(specimen):
    with open(specimen.place / "manifest.json", "r+b") as file:
        file.truncate(64 * 2**20 + 1)  # sparse
    with pytest.raises(CheckpointError, match="has 67108865 bytes, allowed are 67108864"):
        specimen.folder().read(specimen.names[0])


@pytest.mark.parametrize("file", ["../q_table.npy", "/etc/passwd", "Q.npy", "q_table.npy\n", "visits.npy"])
def test_an_array_file_elsewhere_is_refused(specimen, file):
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["arrays"]["q_table"]["file"] = file
    assert specimen.outcome({"manifest.json": manifest(body)}) == "refused"
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["arrays"][file.removesuffix(".npy")] = body["arrays"].pop("q_table")
    if file != "visits.npy":
        assert specimen.outcome({"manifest.json": manifest(body)}) == "refused"


def test_an_array_outside_the_checkpoint_is_refused_although_it_fits(specimen):
    (specimen.place.parent / "q_table.npy").write_bytes(specimen.whole["q_table.npy"])
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["arrays"]["../q_table"] = {**body["arrays"].pop("q_table"), "file": "../q_table.npy"}
    (specimen.place / "manifest.json").write_bytes(manifest(body))
    with pytest.raises(CheckpointError, match="'../q_table' is no name of an array"):
        specimen.folder().read(specimen.names[0])


def test_a_claimed_size_that_memory_cannot_hold_is_refused_before_it_is_asked_for(specimen):
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["arrays"]["q_table"]["shape"] = [2**40, 2**40]
    assert specimen.outcome({"manifest.json": manifest(body)}) == "refused"


def test_one_of_another_format_version_is_no_damage_and_says_what_reads_it(specimen, caplog):
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body.update(format_version=4, package_version="9.0.0")
    (specimen.place / "manifest.json").write_bytes(manifest(body))
    for attempt in (lambda: specimen.folder().read(specimen.names[0]), specimen.folder().read_newest):
        with pytest.raises(CheckpointUnreadableError, match="is 4, .*reads 3.* '9.0.0'.*install"):
            attempt()
    # Where its sums do not fit, it is damaged whatever it says.
    (specimen.place / "manifest.json").write_bytes(manifest(body).replace(b"9.0.0", b"9.0.1"))
    assert specimen.folder().read_newest().name == specimen.names[1]


@pytest.mark.parametrize("version", [None, "4", 4.0, True, 0, -1])
def test_a_format_version_that_is_none_is_damage(specimen, version):
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["format_version"] = version
    assert specimen.outcome({"manifest.json": manifest(body)}) == "refused"


def test_a_manifest_of_another_kind_is_refused(specimen):
    body = json.loads(specimen.whole["manifest.json"])["body"]
    body["format"] = "something else"
    (specimen.place / "manifest.json").write_bytes(manifest(body))
    with pytest.raises(CheckpointError, match="it was not written by this library"):
        specimen.folder().read(specimen.names[0])


def test_a_manifest_with_one_word_changed_is_refused(specimen):
    whole = specimen.whole["manifest.json"]
    (specimen.place / "manifest.json").write_bytes(whole.replace(b"the newer", b"the older"))
    with pytest.raises(CheckpointError, match="the checksum of its manifest does not match"):
        specimen.folder().read(specimen.names[0])


def test_a_copy_under_another_name_is_refused(specimen):
    copy = specimen.place.with_name(specimen.names[0].replace("step000000000000020", "step000000000000021"))
    specimen.place.rename(copy)
    with pytest.raises(CheckpointError, match="its name and its manifest contradict each other"):
        specimen.folder().read(copy.name)
    assert specimen.folder().read_newest().name == specimen.names[1]


def test_a_named_pipe_instead_of_a_file_does_not_block(specimen):
    (specimen.place / "q_table.npy").unlink()
    os.mkfifo(specimen.place / "q_table.npy")
    with pytest.raises(CheckpointError, match="Not a regular file"):
        specimen.folder().read(specimen.names[0])


@pytest.mark.parametrize(
    "name", ["", "..", "../agent-0", "f1", "f000001-c00000001-step000000000000010-0123ABCD"]
)
def test_only_names_of_checkpoints_are_read(specimen, name):
    with pytest.raises(CheckpointError, match="its name is not that of a checkpoint"):
        CheckpointFolder(specimen.location, "agent-0").read(name)
