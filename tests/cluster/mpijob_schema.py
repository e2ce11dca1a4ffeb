"""What an MPIJob of the Kubernetes MPI Operator (API v2beta1) may say, in the project's own words.

`SPEC` has the fields that the operator's published schema has, no more and no fewer, except for the pods'
templates, which are Kubernetes' own. `refused` adds what the operator refuses though its schema lets it pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

STRING, BOOLEAN = {"type": "string"}, {"type": "boolean"}
INT32, INT64 = {"type": "integer", "format": "int32"}, {"type": "integer", "format": "int64"}


def _object(required: tuple[str, ...] = (), **properties: Mapping) -> dict:
    """Give the schema of an object that has these fields and no others."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _map_of(schema: Mapping) -> dict:
    return {"type": "object", "additionalProperties": schema}


SCHEDULING = _object(
    minAvailable=INT32,
    minResources=_map_of({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    priorityClass=STRING,
    queue=STRING,
    scheduleTimeoutSeconds=INT32,
)
RUN_POLICY = _object(
    activeDeadlineSeconds=INT64,
    backoffLimit=INT32,
    cleanPodPolicy=STRING,
    managedBy=STRING,
    schedulingPolicy=SCHEDULING,
    suspend=BOOLEAN,
    ttlSecondsAfterFinished=INT32,
)
REPLICAS = _object(replicas=INT32, restartPolicy=STRING, template={"type": "object"})
SPEC = _object(
    ("mpiReplicaSpecs",),
    launcherCreationPolicy=STRING,
    mpiImplementation={"type": "string", "enum": ["OpenMPI", "Intel", "MPICH"]},
    mpiReplicaSpecs=_map_of(REPLICAS),
    runLauncherAsWorker=BOOLEAN,
    runPolicy=RUN_POLICY,
    slotsPerWorker=INT32,
    sshAuthMountPath=STRING,
)
MPIJOB = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata=_object(
        ("name",), name=STRING, namespace=STRING, labels=_map_of(STRING), annotations=_map_of(STRING)
    ),
    spec=SPEC,
)

_ONE_OF = {
    "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
    "cleanPodPolicy": {"None", "Running", "All"},
    "managedBy": {"kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"},
    "restartPolicy": {"Never", "OnFailure"},
}
_NOT_NEGATIVE = ("activeDeadlineSeconds", "backoffLimit", "slotsPerWorker", "ttlSecondsAfterFinished")
_LONGEST_NAME = 63
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def refused(job: Mapping) -> Iterator[str]:
    """Say what the operator refuses of a job that fits the schema."""
    spec = job["spec"]
    replicas = spec["mpiReplicaSpecs"]
    if "Launcher" not in replicas or not replicas.keys() <= {"Launcher", "Worker"}:
        yield f"mpiReplicaSpecs has a Launcher and may have a Worker, and these are {sorted(replicas)}"
    if replicas.get("Launcher", {}).get("replicas", 1) != 1:
        yield "there is one Launcher"
    workers = replicas.get("Worker", {}).get("replicas", 1)
    if workers < 1:
        yield f"there is at least one Worker, and not {workers}"
    last = f"{job['metadata']['name']}-worker-{workers - 1}"
    if not _NAME.fullmatch(last) or len(last) > _LONGEST_NAME:
        yield f"{last} can be no host's name"
    for part in (spec, spec.get("runPolicy", {}), *replicas.values()):
        for name, allowed in _ONE_OF.items():
            if part.get(name, next(iter(allowed))) not in allowed:
                yield f"{name} is one of {sorted(allowed)}, and not {part[name]}"
        for name in _NOT_NEGATIVE:
            if part.get(name, 0) < 0:
                yield f"{name} is not negative, as {part[name]} is"


def shape(schema: Mapping) -> dict:
    """Return what a schema says of names, types, choices and what must be there, down to the templates."""
    kept = {name: schema[name] for name in ("type", "format", "enum", "anyOf") if name in schema}
    if schema.get("required"):
        kept["required"] = sorted(schema["required"])
    if "properties" in schema:
        kept["properties"] = {
            name: {"type": inner["type"]} if name == "template" else shape(inner)
            for name, inner in schema["properties"].items()
        }
    if schema.get("additionalProperties"):
        kept["additionalProperties"] = shape(schema["additionalProperties"])
    return kept


def closed(schema: object) -> object:
    """Return a published schema that refuses unknown fields, as a server does when it validates strictly."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(value) for name, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not is_open:
        inner["additionalProperties"] = False
    return inner
