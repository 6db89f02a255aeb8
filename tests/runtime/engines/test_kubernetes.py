"""The objects of a launch on Kubernetes: valid to the letter, secrets in one file, mistakes in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from planaria.runtime.engines.kubernetes_manifests import ZONE_LABEL
from planaria.ui.cli.main import cli
from tests.runtime.coordinator.test_remote_nodes import TOKEN
from tests.runtime.engines.jobset_schema import JOBSET
from tests.runtime.engines.test_slurm import JOB

VERSIONS = ("1.29", "1.33", "1.37")
"""From the first one in which all fields are on by default."""

OPTIONS = (
    *("--nodes", "4", "--spares", "2", "--image", "registry.example/planaria:1", "--namespace", "team", "--queue", "q"),
    *("--cpu", "500m", "--memory", "64Gi", "--gpus", "8", "--env-from", "bucket", "--storage-class", "nfs"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANARIA_TOKEN", TOKEN)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def launch(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["launch", "kubernetes", "job.toml", *arguments])
    return done.exit_code, done.output


def printed(*arguments: str) -> dict[str, dict[str, Any]]:
    """What is printed, by "Kind name"."""
    code, said = launch(*arguments, "--print")
    assert code == 0, said
    return {f"{each['kind']} {each['metadata']['name']}": each for each in yaml.safe_load_all(said)}


def jobs_of(objects: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specifications of both Jobs, whether they are in a JobSet or not."""
    if "JobSet job" in objects:
        return {each["name"]: each["template"]["spec"] for each in objects["JobSet job"]["spec"]["replicatedJobs"]}
    return {part: objects[f"Job job-{part}"]["spec"] for part in ("coordinator", "agents")}


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["template"]["spec"]["containers"]
    return dict(container)


def check_strictly(objects: dict[str, dict[str, Any]]) -> None:
    for version in VERSIONS:
        for each in objects.values():
            if each["kind"] != "JobSet":
                kubernetes_validate.validate(each, version, strict=True)
        for part, spec in jobs_of(objects).items():
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part}, "spec": spec}
            kubernetes_validate.validate(job, version, strict=True)
    if "JobSet job" in objects:
        jsonschema.validate(objects["JobSet job"], JOBSET)


@pytest.mark.parametrize("plain", [(), ("--plain-jobs",)])
def test_objects_are_valid_to_the_letter(plain: Sequence[str], folder: Path) -> None:
    certificates = [sys.executable, "-m", "planaria.ui.cli.main", "certificates", "tls"]
    subprocess.run(certificates, check=True, capture_output=True)
    objects = printed(*OPTIONS, *plain, "--set", 'cluster.tls="tls"')
    check_strictly(objects)
    assert not [name for name in objects if "Role" in name], "nothing talks to the API server"
    assert all(each["metadata"]["namespace"] == "team" for each in objects.values())
    jobs = jobs_of(objects)
    agents = jobs["agents"]
    assert agents["completions"] == agents["parallelism"] == 6
    assert agents["completionMode"] == "Indexed"
    assert agents["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    limits = {part: container_of(job)["resources"]["limits"]["nvidia.com/gpu"] for part, job in jobs.items()}
    assert limits == {"coordinator": "1", "agents": "8"}
    with pytest.raises(jsonschema.ValidationError):
        bad = {**agents, "podReplacementPolice": "Failed"}
        kubernetes_validate.validate(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "agents"}, "spec": bad}, "1.37", strict=True
        )


def test_pods_find_what_they_name(folder: Path) -> None:
    objects = printed("--nodes", "2", "--image", "planaria", "--set", "train.seed=3")
    check_strictly(objects)
    service = objects["Service job-coordinator"]["spec"]
    for part, job in jobs_of(objects).items():
        pod, container = job["template"], container_of(job)
        selected = all(pod["metadata"]["labels"].get(key) == value for key, value in service["selector"].items())
        assert selected == (part == "coordinator")
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert pod["spec"]["serviceAccountName"] in {name.split()[1] for name in objects if "ServiceAccount" in name}
        assert ZONE_LABEL in str(container["env"])
        planaria, *words = container["command"]
        assert planaria == "planaria"
        command: Any = cli
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        parsed = command.make_context("planaria", words).params
        if part == "agents":
            assert parsed["coordinator"] == f"job-coordinator:{service['ports'][0]['port']}"
            assert parsed["give_up_s"] == 86400
        else:
            assert (parsed["nodes"], parsed["no_agent"], parsed["overrides"]) == ((2, 2), True, ("train.seed=3",))
    assert objects["ConfigMap job"]["data"]["job.toml"] == JOB


def test_a_run_that_grows_has_a_pod_for_each_node_that_it_may_have(folder: Path) -> None:
    objects = printed("--nodes", "4-16", "--spares", "2", "--image", "planaria")
    check_strictly(objects)
    jobs = jobs_of(objects)
    assert jobs["agents"]["completions"] == jobs["agents"]["parallelism"] == 18
    command = container_of(jobs["coordinator"])["command"]
    assert command[command.index("--nodes") + 1] == "4-16"


def test_the_token_is_in_one_private_file_and_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANARIA_TOKEN")
    options = ("--nodes", "2", "--image", "planaria", "-o", "out")
    assert launch(*options)[0] == 0
    file = folder / "out" / "secret.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    token = yaml.safe_load(file.read_text())["stringData"]["token"]
    assert len(token) == 32
    assert token not in (folder / "out" / "run.yaml").read_text()
    assert launch(*options, "--spares", "1")[0] == 0
    assert yaml.safe_load(file.read_text())["stringData"]["token"] == token


def test_kubectl_applies_what_was_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--nodes", "2", "--image", "planaria", "--apply")
    kubectl = folder / "bin" / "kubectl"
    kubectl.parent.mkdir()
    monkeypatch.setenv("PATH", str(kubectl.parent))
    code, said = launch(*options)
    assert (code, "kubectl is not there" in said) == (2, True)
    kubectl.write_text('#!/bin/sh\necho "$@"\n')
    kubectl.chmod(0o755)
    code, said = launch(*options)
    assert (code, said.splitlines()[-1]) == (0, "apply -f job.kubernetes")
    kubectl.write_text('#!/bin/sh\necho \'no matches for kind "JobSet" in version "v"\' >&2\necho more >&2\nexit 1\n')
    code, said = launch(*options)
    assert code == 2
    assert said.splitlines()[-1].endswith("Install JobSet, or give --plain-jobs.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", "2"), "Missing option '--image'"),
        (("--nodes", "2", "--image", " "), "is no image"),
        (("--nodes", "0", "--image", "planaria"), "'0' is not a number of nodes"),
        (("--nodes", "2", "--image", "planaria", "--memory", "4Gib"), "--memory '4Gib' is no amount of bytes"),
        (("--nodes", "2", "--image", "planaria", "--memory", "64"), "--memory '64' is no amount of bytes"),
        (("--nodes", "2", "--image", "planaria", "--cpu", "0"), "--cpu '0' is no amount of processors"),
        (("--nodes", "2", "--image", "planaria", "--name", "My_run"), "run name 'My_run' cannot be that of pods"),
        (("--nodes", "2", "--image", "planaria", "--queue", "a b"), "--queue 'a b' is no name of Kubernetes"),
        (("--nodes", "2", "--image", "planaria", "--set", 'run.folder="/shared"'), "is not on the volume"),
        (("--nodes", "2", "--image", "planaria", "--set", 'cluster.tls="none"'), "the certificates in none cannot be"),
        (("--nodes", "2", "--image", "planaria", "--set", "train.steps=0"), "train.steps"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], words: str, folder: Path) -> None:
    code, said = launch(*arguments)
    assert code == 2
    (line,) = said.splitlines()
    assert words in line
    assert os.listdir(folder) == ["job.toml"]


def test_the_image_is_made_as_a_linter_likes_it() -> None:
    dockerfile = Path(__file__).parents[3] / "docker" / "Dockerfile"
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, dockerfile], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
