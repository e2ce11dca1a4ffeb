"""That the manifests in deploy/kubernetes are known to Kubernetes and the MPI Operator, and fit the image.

DIST_CLASSICRL_MPIJOB_CRD names a file with the operator's published CustomResourceDefinition; without it the
file is fetched, and where that is impossible the tests that need it are skipped.
"""

from __future__ import annotations

import copy
import http.client
import os
import time
import urllib.request
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from dockerfile import read_stages
from mpijob_schema import MPIJOB, SPEC, closed, refused, shape

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OPERATOR = "v0.8.0"
URL = f"https://raw.githubusercontent.com/kubeflow/mpi-operator/{OPERATOR}/manifests/base/kubeflow.org_mpijobs.yaml"
FETCH_SECONDS = 15.0
# Of Kubernetes: the oldest one in which all that is used is there, and the newest one that has schemas here.
VERSIONS = ("1.27", kubernetes_validate.latest_version())
ROLES = ("Launcher", "Worker")


def documents():
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


@pytest.fixture
def job():
    (found,) = (document for document in documents() if document["kind"] == "MPIJob")
    return copy.deepcopy(found)


@pytest.fixture
def pods(job):
    return {role: job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"] for role in ROLES}


@pytest.fixture(scope="session")
def published():
    """The schema of an MPIJob as its makers publish it."""
    named = os.environ.get("DIST_CLASSICRL_MPIJOB_CRD")
    if named:
        text = Path(named).read_bytes()
    else:
        try:
            text = fetched(URL)
        except (OSError, http.client.HTTPException) as error:
            pytest.skip(f"{URL} cannot be had ({error}); name a copy in DIST_CLASSICRL_MPIJOB_CRD.")
    definition = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v2beta1")
    return version["schema"]["openAPIV3Schema"]


def fetched(url):
    deadline = time.monotonic() + FETCH_SECONDS
    text = b""
    with urllib.request.urlopen(url, timeout=FETCH_SECONDS / 3) as answer:
        while part := answer.read1(65536):
            text += part
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {FETCH_SECONDS:g} s")
        length = answer.headers["Content-Length"]
    if length is not None and len(text) < int(length):
        raise http.client.IncompleteRead(text, int(length) - len(text))
    return text


def check_core(document):
    """Check an object of Kubernetes' own against its published schemas, which refuse unknown fields."""
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def check_template(template):
    kinds = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "template"}}
    check_core({**kinds, "template": template})


def check_job(job):
    jsonschema.validate(job, MPIJOB)
    assert list(refused(job)) == []
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        check_template(replicas["template"])


def test_every_manifest_is_what_kubernetes_understands():
    kinds = []
    for document in documents():
        kinds.append(document["kind"])
        if document["kind"] == "MPIJob":
            check_job(document)
        else:
            check_core(document)
    assert sorted(kinds) == ["MPIJob", "NetworkPolicy", "PersistentVolumeClaim"]


def test_the_job_is_what_the_operator_publishes(published, job):
    jsonschema.validate(job, closed(published))
    job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError, match="volumeMount"):
        jsonschema.validate(job, closed(published))


def test_our_words_for_an_mpijob_are_those_that_the_operator_publishes(published):
    assert shape(SPEC) == shape(published["properties"]["spec"])


def changed(job, path, value):
    """Put a value at a path, or take away what is there where the value is None."""
    *above, last = path
    for name in above:
        job = job[name]
    if value is None:
        del job[last]
    else:
        job[last] = value


LAUNCHER = ("spec", "mpiReplicaSpecs", "Launcher")
CONTAINER = (*LAUNCHER, "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "slotPerWorker"), 2),
        (("spec", "slotsPerWorker"), "2"),
        (("spec", "runPolicy", "backOffLimit"), 3),
        (("spec", "mpiReplicaSpecs"), None),
        (("spec", "mpiImplementation"), "openmpi"),
        ((*LAUNCHER, "restartpolicy"), "Never"),
        ((*LAUNCHER, "template", "spec", "terminationGracePeriod"), 30),
        ((*CONTAINER, "volumeMount"), []),
        ((*CONTAINER, "name"), None),
        ((*CONTAINER, "securityContext", "runAsUsr"), 1000),
        ((*CONTAINER, "args", 0), 1),
        (("apiVersion",), "kubeflow.org/v1"),
        (("status",), {}),
    ],
)
def test_a_typo_is_refused(job, path, value):
    changed(job, path, value)
    with pytest.raises(jsonschema.ValidationError):
        check_job(job)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*LAUNCHER, "restartPolicy"), "Always"),
        ((*LAUNCHER, "replicas"), 2),
        (("spec", "mpiReplicaSpecs", "Worker", "replicas"), 0),
        (("spec", "mpiReplicaSpecs", "Server"), {"replicas": 1}),
        (LAUNCHER, None),
        (("spec", "runPolicy", "cleanPodPolicy"), "Always"),
        (("spec", "runPolicy", "backoffLimit"), -1),
        (("spec", "launcherCreationPolicy"), "Later"),
        (("metadata", "name"), "Train"),
        (("metadata", "name"), "t" * 60),
    ],
)
def test_what_the_operator_itself_refuses_is_refused(job, path, value):
    changed(job, path, value)
    jsonschema.validate(job, MPIJOB)
    assert len(list(refused(job))) == 1


def test_a_typo_in_the_other_manifests_is_refused():
    others = [document for document in documents() if document["kind"] != "MPIJob"]
    for document in others:
        document["spec"]["accessMode"] = []
        with pytest.raises(jsonschema.ValidationError, match="accessMode"):
            check_core(document)


def test_the_job_has_what_the_image_needs(job, pods):
    stages = read_stages((ROOT / "Dockerfile").read_text())
    env, user = {}, ""
    for name in ("trainer", "sshd"):
        for instruction in stages[name].instructions:
            env |= instruction.pairs() if instruction.name == "ENV" else {}
            user = instruction.value if instruction.name == "USER" else user
    assert job["spec"]["sshAuthMountPath"] == f"{env['HOME']}/.ssh"
    for pod in pods.values():
        (container,) = pod["containers"]
        security = pod["securityContext"]
        assert user == f"{security['runAsUser']}:{security['runAsGroup']}" and security["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted == {"/data", "/dev/shm", "/tmp", env["NUMBA_CACHE_DIR"]}
        # Without it the image's first process, which hands signals on, would not be there.
        assert "command" not in container and container["image"].endswith("-sshd")
        assert pod["automountServiceAccountToken"] is False
    (worker,) = pods["Worker"]["containers"]
    assert worker["args"] == [stages["sshd"].instructions[-1].words()[0]] == ["start-sshd"]
    ports = [step.value for step in stages["sshd"].instructions if step.name == "EXPOSE"]
    assert [str(port["containerPort"]) for port in worker["ports"]] == ports


def test_an_eviction_leaves_the_time_that_saving_may_take(pods):
    (worker,), (launcher,) = (pods[role]["containers"] for role in reversed(ROLES))
    program, seconds = worker["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "stop-ranks" and float(seconds) < pods["Worker"]["terminationGracePeriodSeconds"]
    (silence,) = (word.partition("=")[2] for word in launcher["args"] if word.startswith("--silence="))
    assert float(silence) < pods["Launcher"]["terminationGracePeriodSeconds"]


def test_the_manifests_mean_the_same_job(job, pods):
    by_kind = {document["kind"]: document for document in documents()}
    labels = {"training.kubeflow.org/job-name": job["metadata"]["name"]}
    policy = by_kind["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    (spread,) = pods["Worker"]["topologySpreadConstraints"]
    assert labels.items() < spread["labelSelector"]["matchLabels"].items()
    claim = by_kind["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods.values():
        claims = [each["persistentVolumeClaim"] for each in pod["volumes"] if each["name"] == "data"]
        assert claims == [{"claimName": claim["metadata"]["name"]}]
    (launcher,) = pods["Launcher"]["containers"]
    folders = [word for word in launcher["args"] if word.startswith(("--out=", "--state-dir="))]
    assert len(folders) == 2 and all("=/data/" in word for word in folders)
