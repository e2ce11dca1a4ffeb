"""The pods of an MPIJob on emulated hosts, as the MPI Operator and a kubelet would make them.

Each pod is a container of the image on a host with a network card of its own. What the operator adds to the
pods (keys, host file, names, variables) is made here in its form; no cluster is involved.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from container_build import Image
from container_roots import Running
from hosts import NETWORK, Hosts

NAMESPACE = "default"
CONNECT = "import socket; socket.create_connection(({!r}, {}), timeout=1)"
READY_SECONDS = 300.0
# What the operator sets for Open MPI, of which version 5 reads nothing.
OF_THE_OPERATOR = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}


def make_keys(folder: Path) -> Path:
    """Make the pair of keys of a job, in the form in which a pod sees the operator's secret."""
    folder.mkdir()
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", "id_rsa"]
    subprocess.run(words, cwd=folder, check=True)
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o777)
    return folder


class Pods:
    """The pods of `job`, an MPIJob as its file has it: the launcher on host h1, workers on those that follow.

    `folder` has the folder `data`, which all of them see, and gets all else that they are given.
    `machine_code` takes the place of the folder in which each pod keeps its own, so that it is compiled once.
    """

    def __init__(self, hosts: Hosts, image: Image, job: Mapping, folder: Path, machine_code: Path) -> None:
        self.hosts, self.image, self.job, self.machine_code = hosts, image, job, machine_code
        self.name = job["metadata"]["name"]
        self.folder = folder
        self.data = folder / "data"
        self.keys = make_keys(folder / "keys")
        count = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        self.workers = [f"{self.name}-worker-{number}" for number in range(count)]
        self.host_of = dict(zip([f"{self.name}-launcher", *self.workers], hosts.names, strict=True))
        slots = job["spec"]["slotsPerWorker"]
        (folder / "mpi").mkdir()
        lines = [f"{self.full_name(worker)} slots={slots}\n" for worker in self.workers]
        (folder / "mpi" / "hostfile").write_text("".join(lines))
        names = [f"{NETWORK}.{number}\t{self.full_name(pod)}\n" for number, pod in enumerate(self.host_of, 1)]
        (folder / "names").write_text("127.0.0.1\tlocalhost\n" + "".join(names))

    def full_name(self, pod: str) -> str:
        """Return the only name under which the other pods know one."""
        return f"{pod}.{self.name}.{NAMESPACE}.svc"

    def template(self, role: str) -> Mapping:
        """Return what the job says of the pods of a role."""
        return self.job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]

    def command(self, pod: str, words: Sequence[str] = (), keys: Path | None = None) -> list[str]:
        """Give the command that runs a pod's container on its host, with other words or keys than its own."""
        role = "Worker" if pod in self.workers else "Launcher"
        template = self.template(role)
        (one,) = template["containers"]
        user = template["securityContext"]
        mounts = {mount["mountPath"]: self._source(template, mount["name"]) for mount in one["volumeMounts"]}
        assert mounts[self.image.env["NUMBA_CACHE_DIR"]] == "tmpfs"
        mounts[self.image.env["NUMBA_CACHE_DIR"]] = str(self.machine_code)
        mounts[self.job["spec"]["sshAuthMountPath"]] = f"ro:{keys or self.keys}"
        # A pod's own name is in its own file of names.
        own = self.folder / f"{pod}.hosts"
        own.write_text((self.folder / "names").read_text().replace(f"\t{self.full_name(pod)}", f"\t{pod}"))
        mounts["/etc/hosts"] = f"ro:{own}"
        env = {entry["name"]: entry["value"] for entry in one.get("env", ())}
        if role == "Launcher":
            mounts["/etc/mpi"] = f"ro:{self.folder / 'mpi'}"
            slots = str(self.job["spec"]["slotsPerWorker"])
            env |= {**OF_THE_OPERATOR, "OMPI_MCA_orte_set_default_slots": slots}
        container = self.image.container(
            env={**env, "HOSTNAME": pod, "HOME": "/home/rl"},
            user=f"{user['runAsUser']}:{user['runAsGroup']}",
            read_only=one["securityContext"]["readOnlyRootFilesystem"],
            host=pod,
            mounts=mounts,
        )
        words = words or [*one.get("command", self.image.entrypoint), *one["args"]]
        return self.hosts.command(self.host_of[pod], container.command(words))

    def _source(self, template: Mapping, name: str) -> str:
        (volume,) = (volume for volume in template["volumes"] if volume["name"] == name)
        return "tmpfs" if "emptyDir" in volume else str(self.data)

    def start(self, pod: str, words: Sequence[str] = (), keys: Path | None = None) -> Running:
        """Start a pod's container, with other words or keys than its own if they are given."""
        return Running(self.command(pod, words, keys), self.folder / f"{pod}-{time.monotonic_ns()}.log")

    def wait_until_ready(self, pod: str, port: int) -> None:
        """Wait until a port of a pod can be reached from the first host."""
        address = f"{NETWORK}.{self.hosts.names.index(self.host_of[pod]) + 1}"
        probe = self.hosts.command("h1", [sys.executable, "-c", CONNECT.format(address, port)])
        deadline = time.monotonic() + READY_SECONDS
        while subprocess.run(probe, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"{pod} did not answer at port {port} within {READY_SECONDS:g} s")
            time.sleep(0.1)
