"""The steps of the Dockerfile, done in a fresh Debian root; and what its images are good for."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import container_roots
import pytest
import yaml
from container_build import Builder
from container_checks import SECONDS, check_policy, check_run, gives_rights, run, run_unit_tests
from container_pods import Pods, make_keys
from container_roots import Running, folder_of_roots, make_base, size_of
from hosts import UNREACHABLE, Hosts

from dist_classicrl.process.jobs import run_job

ROOT = Path(__file__).resolve().parents[2]
SSH_PORT = 2222
BASE = "debian:bookworm-20250520-slim"
SMOKE = ("test_q_learning.py", "test_learners.py", "test_solve.py", "test_spaces.py")
# What the image has on top of its base: 340 MB when this was written, of which 179 MB are LLVM.
MEGABYTES = 400
MEGABYTES_OF_SSHD = 15
LEARN = ("--learning-rate", "per_visit:0.7", "--seed", "1", "--out", "run")
TRAIN = ("dist-classicrl", "train", "FrozenLake-v1", *LEARN)


@pytest.fixture(scope="session")
def builder():
    if reason := container_roots.why_not():
        pytest.skip(f"The steps of the Dockerfile cannot be executed: {reason}.")
    with folder_of_roots() as folder:
        yield Builder(ROOT / "Dockerfile", ROOT, folder, BASE, make_base(folder))


@pytest.fixture(scope="session")
def image(builder):
    return builder.build("runtime")


@pytest.fixture(scope="session")
def machine_code(builder, image):
    """What numba has compiled, for all containers of the tests."""
    folder = image.root.parent / "numba"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def data():
    """A folder that the image's user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="container-"))
    (folder / "data").mkdir()
    shutil.chown(folder / "data", 1000, 1000)
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder)


@pytest.fixture
def container(image, machine_code, data):
    """A container whose own files cannot be changed, with /data and machine code from outside."""

    def make(image=image, **settings):
        mounts = {"/tmp": "tmpfs", "/data": str(data), image.env["NUMBA_CACHE_DIR"]: str(machine_code)}
        mounts |= settings.pop("mounts", {})
        return image.container(read_only=True, host="box", mounts=mounts, **settings)

    return make


@pytest.fixture(scope="session")
def ssh_image(builder, image):
    return builder.build("sshd")


@pytest.fixture
def pods(possible, ssh_image, machine_code, data):
    """The workers of the MPIJob, ready, and its launcher, which is not started."""
    job = yaml.safe_load((ROOT / "deploy/kubernetes/mpijob.yaml").read_text())
    with Hosts(1 + job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]) as hosts, ExitStack() as stack:
        pods = Pods(hosts, ssh_image, job, data.parent, machine_code)
        pods.running = {worker: stack.enter_context(pods.start(worker)) for worker in pods.workers}
        for worker in pods.workers:
            pods.wait_until_ready(worker, SSH_PORT)
        yield pods


def test_the_image_is_small_and_has_no_tools_to_build_with(builder, image, record_property):
    base = size_of(builder._bases[BASE])
    size = size_of(image.root)
    record_property("megabytes", size)
    print(f"base {base:.0f} MB, image {size:.0f} MB; seconds by stage: {builder.seconds}")
    assert size - base < MEGABYTES
    found = {path.name for folder in ("usr/bin", "opt/venv/bin") for path in (image.root / folder).iterdir()}
    assert {"python3", "tini", "dist-classicrl", "mpirun"} <= found
    assert not found & {"gcc", "cc", "make", "git", "pip", "pip3", "curl", "sshd", "ssh"}
    assert not [path for path in ("source", "opt/tools", "opt/wheels") if (image.root / path).exists()]
    assert not list((image.root / "var/lib/apt/lists").glob("*_*"))
    packages = image.root / "opt/venv/lib/python3.11/site-packages"
    assert not list(packages.glob("pip*")) and not list(packages.rglob("tests"))
    licence = next(packages.glob("dist_classicrl_mpi-*.dist-info")) / "licenses" / "LICENSE"
    assert licence.read_text() == (ROOT / "LICENSE").read_text()


def test_the_image_says_what_it_is_and_starts_as_its_own_user(image, container):
    assert image.user == "1000:1000" and image.cwd == "/data" and image.ports == ()
    assert image.entrypoint == ("tini", "--")
    assert {"org.opencontainers.image.title", "org.opencontainers.image.licenses"} <= set(image.labels)
    assert "Usage: dist-classicrl" in run(container(), *image.entrypoint, *image.cmd)


def test_its_user_can_write_nowhere_but_where_it_has_to(image):
    look = "find / -xdev -writable ! -type l ! -path '/proc/*' ! -path '/dev/*' 2>/dev/null; id -u; id -G"
    found = run(image.container(), "sh", "-c", look).split()
    assert found[-2:] == ["1000", "1000"]
    # /run/lock is Debian's own.
    assert sorted(found[:-2]) == ["/data", "/run/lock", "/tmp", "/var/cache/numba", "/var/tmp"]
    assert not [path for path in image.root.rglob("*") if gives_rights(path)]


def test_the_tests_smoke_part_passes_in_it(builder, container, data):
    said = run_unit_tests(builder.build("build"), container, data.parent / "pytest", SMOKE)
    passed = int(said.rpartition(" passed")[0].split()[-1])
    assert passed > 50 and " failed" not in said


def test_a_training_on_ranks_learns_the_best_policy(container, data):
    inside = container()
    run(inside, "tini", "--", *TRAIN, "--ranks", "3", "--total-steps", "2e7")
    check_run(data / "run", 20_000_000)
    check_policy(inside, "run")
    assert {path.owner() for path in data.iterdir()} == {(data / "run").owner()}
    assert (data / "run").stat().st_uid == 1000


def test_the_doctor_finds_no_failure(container):
    said = run(container(), "tini", "--", "dist-classicrl", "doctor", "--ranks", "3")
    assert " 0 failures" in said and "survives a death: a rank was killed" in said


def test_a_user_that_it_does_not_know_can_train_too(image, machine_code, container, data):
    shutil.chown(data, 4711, 4711)
    fresh = {image.env["NUMBA_CACHE_DIR"]: "tmpfs"}
    run(
        container(user="4711:4711", mounts=fresh),
        "tini",
        "--",
        *TRAIN,
        "--ranks",
        "2",
        "--total-steps",
        "1e5",
    )
    check_run(data / "run", 100_000)
    assert (data / "run").stat().st_uid == 4711


def test_a_container_that_is_stopped_saves_the_run_and_goes_on_when_it_is_started_again(container, data):
    def checkpoints():
        return list((data / "run").glob("checkpoints/*/*/manifest.json"))

    words = (
        "tini",
        "--",
        *TRAIN,
        "--ranks",
        "3",
        "--progress-interval",
        "0.2",
        "--checkpoint-interval",
        "600s",
    )
    metrics = data / "run" / "metrics.jsonl"
    with Running(container().command([*words, "--total-steps", "1e12"]), data.parent / "log") as running:
        running.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, "records", SECONDS)
        assert not checkpoints()
        running.send(signal.SIGTERM)
        assert running.wait(SECONDS) == 75, running.output
    assert len(checkpoints()) == 1
    stopped_at = json.loads(metrics.read_text().splitlines()[-1])["step"]
    run(container(), *words, "--total-steps", str(stopped_at + 1_000_000))
    check_run(data / "run", stopped_at + 1_000_000)
    result = json.loads((data / "run" / "result.json").read_text())
    assert f"step{stopped_at:015d}" in result["resumed_from"]


def from_launcher(pods, *words, status=0):
    """Run something in the launcher's pod, check its exit status, and give all that it wrote."""
    job = run_job(pods.command("train-launcher", words), timeout=SECONDS)
    assert job.returncode == status, job.output
    return job.output


def test_who_asks_ranks_to_stop_says_whether_they_have(container):
    assert run(container(), "stop-ranks") == ""
    rank = "trap 'echo heard' USR1; touch /tmp/listens; while :; do sleep 0.1; done"
    listens = "until [ -e /tmp/listens ]; do sleep 0.05; done"
    script = f"OMPI_COMM_WORLD_RANK=0 sh -c {shlex.quote(rank)} & {listens}; stop-ranks 1; echo $?; kill $!"
    assert run(container(), "tini", "--", "sh", "-c", script).split() == ["heard", "1"]


ORPHAN = """
import os, subprocess, sys
from container_roots import Container
command = Container(sys.argv[1]).command(["/bin/sh", "-c", "echo; sleep 300"])
child = subprocess.Popen(command, stdout=subprocess.PIPE)
child.stdout.readline()
pid = child.pid
print(pid, open(f"/proc/{pid}/task/{pid}/children").read(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_container_ends_with_the_process_that_made_it_and_leaves_nothing_mounted(image):
    words = [sys.executable, "-c", ORPHAN, str(image.root)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    maker = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, timeout=SECONDS)
    pids = maker.stdout.split()
    assert len(pids) == 2
    deadline = time.monotonic() + SECONDS
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert str(image.root) not in Path("/proc/mounts").read_text()


def test_the_image_with_sshd_has_little_more_and_no_keys(image, ssh_image):
    assert 0 < size_of(ssh_image.root) - size_of(image.root) < MEGABYTES_OF_SSHD
    assert ssh_image.user == "1000:1000" and ssh_image.ports == (str(SSH_PORT),)
    assert {path.name for path in (ssh_image.root / "etc/ssh").glob("*key*")} == set()
    assert not [path for path in ssh_image.root.rglob("*") if gives_rights(path)]
    assert not (image.root / "usr/sbin/sshd").exists()
    said = run(ssh_image.container(), *ssh_image.entrypoint, *ssh_image.cmd, status=1)
    assert "mount /home/rl/.ssh" in said


def test_sshd_lets_in_whoever_has_the_key_and_nobody_else(pods):
    worker = pods.full_name("train-worker-1")
    look = "hostname; id -u; echo $NUMBA_CACHE_DIR; command -v prted; cat /proc/1/comm; touch /etc/x 2>&1"
    *said, touched = from_launcher(pods, "ssh", worker, look, status=1).splitlines()
    assert said == ["train-worker-1", "1000", "/var/cache/numba", "/opt/venv/bin/prted", "tini"]
    assert touched.endswith("Read-only file system")

    no_key = ["-o", "PubkeyAuthentication=no", "-o", "BatchMode=no", "-o", "PasswordAuthentication=yes"]
    no_list = "-F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    attempt = f"ssh-keygen -q -N '' -f /tmp/other; ssh -i /tmp/other -p {SSH_PORT} {no_list} rl@{worker} true"
    for words in (["ssh", *no_key, worker], ["sh", "-c", attempt], ["ssh", "-l", "root", worker, "true"]):
        assert "Permission denied (publickey)." in from_launcher(pods, *words, status=UNREACHABLE)

    # Without a host key from outside each server has one of its own.
    (pods.folder / "bare").mkdir()
    shutil.copy(pods.keys / "authorized_keys", pods.folder / "bare")
    with pods.start("train-launcher", ["start-sshd"], keys=pods.folder / "bare") as server:
        server.wait_for(lambda: f"port {SSH_PORT}" in server.output, "server", SECONDS)
    assert "SHA256:" in server.output and "(ED25519)" in server.output

    # Somebody else answers in the worker's place: the launcher does not talk to him.
    shutil.copy(make_keys(pods.folder / "other") / "id_rsa.pub", pods.keys)
    said = from_launcher(pods, "ssh", worker, "true", status=UNREACHABLE)
    assert "Host key verification failed." in said


def test_the_mpijob_survives_an_eviction_and_the_loss_of_a_host(pods, ssh_image):
    folder = pods.data / "lake"
    metrics = folder / "metrics.jsonl"

    def lines():
        return metrics.read_text().count("\n") if metrics.exists() else 0

    with pods.start("train-launcher") as launcher:
        launcher.wait_for(lambda: lines() > 0, "records", SECONDS)
        hook = pods.template("Worker")["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        from_launcher(pods, "ssh", pods.full_name("train-worker-1"), shlex.join(hook))
        assert launcher.wait(SECONDS) == 75, launcher.output
        assert "trained" not in launcher.output
    stopped_at = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert len(list(folder.glob("checkpoints/*/*/manifest.json"))) == 1

    # A kubelet starts a launcher again that has ended with a failure.
    before = lines()
    with pods.start("train-launcher") as launcher:
        launcher.wait_for(lambda: lines() > before, "records after the restart", SECONDS)
        pods.hosts.kill_host(pods.host_of["train-worker-2"])
        assert launcher.wait(SECONDS) == 0, launcher.output
    check_run(folder, 600_000_000)
    check_policy(ssh_image.container(mounts={"/data": str(pods.data)}), "lake")
    result = json.loads((folder / "result.json").read_text())
    print(launcher.output)
    assert stopped_at > 0 and result["resumed_from"] is not None
    assert json.loads(metrics.read_text().splitlines()[before])["step"] > stopped_at
