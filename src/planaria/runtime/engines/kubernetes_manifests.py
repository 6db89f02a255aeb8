"""The objects of a run on Kubernetes: a JobSet, or two Jobs, and what their pods need. Nothing is read or written.

No pod talks to the API server, so there is no role: a service account without a token is all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planaria.job.values import TOKEN_VARIABLE
from planaria.runtime.engines.job_environment import DEFAULT_PORT
from planaria.runtime.thresholds import ENGINE_GIVE_UP_S

Manifest = dict[str, Any]

FOREVER: Final = 2**31 - 1
"""How often Kubernetes replaces a pod: the most that it takes."""

VOLUME: Final = "/planaria"
"""Where the volume is mounted, in which the run folder lies; commands run in it."""

CONFIGURATION: Final = "/etc/planaria"
JOB_FILE: Final = f"{CONFIGURATION}/job.toml"
CERTIFICATES: Final = f"{CONFIGURATION}/tls"

HOPELESS: Final = (1, 2, 3)
"""Exit codes of the coordinator after which another one would fare no better: failed, mistaken, exhausted."""

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
"""Kubernetes 1.35 and later copies it from the node to its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesRun:
    """A run, and how its pods are to be.

    Attributes:
        name: of the run, and of all that is made for it.
        namespace: where that is made; "": the one that kubectl has.
        queue: Kueue's local queue; "": none.
        image: of all pods.
        nodes: agents with which the run begins.
        most_nodes: agents with which it trains at most.
        spares: agents beyond these. They train too, unless `most_nodes` is more than `nodes`: then they wait.
        cpu, memory: of a node, as Kubernetes writes them; "": nothing is asked for.
        gpus: of a node.
        coordinator_gpus: with which the coordinator measures the layers.
        job: text of the job file.
        overrides: "section.key=value" of the command line.
        token: of the run.
        certificates: by name of the file; empty: connections are plain.
        claim: a volume claim that is there already; "": one is made.
        storage: size of the claim that is made.
        storage_class: of that claim; "": the cluster's default.
        secrets: names of Secrets that become environment variables of all pods.
        user: id of user and group under which pods run.
        grace_s: seconds between notice and end of a pod.
        give_up_s: seconds for which an agent waits for the coordinator.
    """

    name: str
    namespace: str = ""
    queue: str = ""
    image: str
    nodes: int
    most_nodes: int
    spares: int = 0
    cpu: str = ""
    memory: str = ""
    gpus: int = 0
    coordinator_gpus: int = 0
    job: str
    overrides: Sequence[str] = ()
    token: str
    certificates: Mapping[str, str]
    claim: str = ""
    storage: str = ""
    storage_class: str = ""
    secrets: Sequence[str] = ()
    user: int = 1000
    grace_s: int = 120
    give_up_s: float = ENGINE_GIVE_UP_S


def secret(run: KubernetesRun) -> Manifest:
    """Returns the Secret with token and certificates."""
    return _object(run, "v1", "Secret", run.name, type="Opaque", stringData={"token": run.token, **run.certificates})


def surroundings(run: KubernetesRun) -> list[Manifest]:
    """Returns what pods need beside the Secret: account, job file, the coordinator's name, and a volume claim."""
    labels = _labels(run, "coordinator")
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": "coordinator", "port": DEFAULT_PORT}],
    }
    made = [
        _object(run, "v1", "ServiceAccount", run.name, automountServiceAccountToken=False),
        _object(run, "v1", "ConfigMap", run.name, data={"job.toml": run.job}),
        _object(run, "v1", "Service", f"{run.name}-coordinator", spec=service),
    ]
    if not run.claim:
        claim: Manifest = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": run.storage}}}
        if run.storage_class:
            claim["storageClassName"] = run.storage_class
        made.append(_object(run, "v1", "PersistentVolumeClaim", run.name, spec=claim))
    return made


def jobset(run: KubernetesRun) -> Manifest:
    """Returns a JobSet: it is over when its coordinator is.

    A pod that is lost is made anew alone, by the agents' Job, which never fails. JobSet's action RestartJob is not
    needed for that; its webhook refuses it while the feature gate of that name is off, as it is by default.
    """
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["coordinator"]},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {"name": part, "replicas": 1, "template": {"spec": spec}}
            for part, spec in (("coordinator", _coordinator(run)), ("agents", _agents(run)))
        ],
    }
    made = _object(run, "jobset.x-k8s.io/v1alpha2", "JobSet", run.name, spec=spec)
    made["metadata"]["labels"].update(_queue(run))
    return made


def plain_jobs(run: KubernetesRun) -> list[Manifest]:
    """Returns the two Jobs of a JobSet, for clusters that have none."""
    made = []
    for part, spec in (("coordinator", _coordinator(run)), ("agents", _agents(run))):
        job = _object(run, "batch/v1", "Job", f"{run.name}-{part}", spec=spec)
        job["metadata"]["labels"].update(_queue(run))
        made.append(job)
    return made


def _coordinator(run: KubernetesRun) -> Manifest:
    """Returns the coordinator's Job: pods that are evicted or killed come back, hopeless ones do not."""
    overrides = [*run.overrides, *([f'cluster.tls="{CERTIFICATES}"'] if run.certificates else [])]
    nodes = f"{run.nodes}" if run.most_nodes == run.nodes else f"{run.nodes}-{run.most_nodes}"
    command = ["planaria", "launch", "here", JOB_FILE, "--no-agent", "--nodes", nodes, "--name", run.name]
    command += [word for override in overrides for word in ("--set", override)]
    return {
        "backoffLimit": FOREVER,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "coordinator", "operator": "In", "values": list(HOPELESS)},
                },
            ]
        },
        "template": _pod(run, "coordinator", command, run.coordinator_gpus),
    }


def _agents(run: KubernetesRun) -> Manifest:
    """Returns the agents' Job. Each index has its own pause before its next pod, so that many losses delay no other."""
    command = ["planaria", "agent", "--coordinator", f"{run.name}-coordinator:{DEFAULT_PORT}"]
    command += ["--give-up", f"{run.give_up_s:g}"]
    agents = run.most_nodes + run.spares
    return {
        "completionMode": "Indexed",
        "completions": agents,
        "parallelism": agents,
        "backoffLimit": FOREVER,
        "backoffLimitPerIndex": FOREVER,
        "podReplacementPolicy": "Failed",
        "template": _pod(run, "agents", command, run.gpus),
    }


def _pod(run: KubernetesRun, part: str, command: Sequence[str], gpus: int) -> Manifest:
    env: list[Manifest] = [
        {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": {"name": run.name, "key": "token"}}},
        {"name": "PLANARIA_ZONE", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ZONE_LABEL}']"}}},
        {"name": "PLANARIA_LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    mounts = [
        {"name": "run", "mountPath": VOLUME},
        {"name": "job", "mountPath": CONFIGURATION, "readOnly": True},
    ]
    volumes: list[Manifest] = [
        {"name": "run", "persistentVolumeClaim": {"claimName": run.claim or run.name}},
        {"name": "job", "configMap": {"name": run.name}},
    ]
    if run.certificates:
        env.append({"name": "PLANARIA_TLS", "value": CERTIFICATES})
        mounts.append({"name": "tls", "mountPath": CERTIFICATES, "readOnly": True})
        items = [{"key": name, "path": name} for name in run.certificates]
        volumes.append({"name": "tls", "secret": {"secretName": run.name, "defaultMode": 0o400, "items": items}})
    container: Manifest = {
        "name": part,
        "image": run.image,
        "command": list(command),
        "workingDir": VOLUME,
        "env": env,
        "envFrom": [{"secretRef": {"name": name}} for name in run.secrets],
        "resources": _resources(run, gpus),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    return {
        "metadata": {"labels": _labels(run, part)},
        "spec": {
            "serviceAccountName": run.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": run.grace_s,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": run.user,
                "runAsGroup": run.user,
                "fsGroup": run.user,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{key: value for key, value in container.items() if value not in ([], {})}],
            "volumes": volumes,
        },
    }


def _resources(run: KubernetesRun, gpus: int) -> Manifest:
    """Returns what a pod asks for. Processor time is no limit: what others do not need may be used."""
    requests = {"cpu": run.cpu, "memory": run.memory}
    limits = {"memory": run.memory, "nvidia.com/gpu": str(gpus) if gpus else ""}
    made = {
        kind: {name: value for name, value in values.items() if value}
        for kind, values in (("requests", requests), ("limits", limits))
    }
    return {kind: values for kind, values in made.items() if values}


def _object(run: KubernetesRun, version: str, kind: str, name: str, **rest: Any) -> Manifest:
    metadata: Manifest = {"name": name, "labels": _labels(run)}
    if run.namespace:
        metadata["namespace"] = run.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _labels(run: KubernetesRun, part: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "planaria", "app.kubernetes.io/instance": run.name}
    return {**labels, "app.kubernetes.io/component": part} if part else labels


def _queue(run: KubernetesRun) -> dict[str, str]:
    return {"kueue.x-k8s.io/queue-name": run.queue} if run.queue else {}
