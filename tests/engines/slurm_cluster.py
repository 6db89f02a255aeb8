"""A SLURM of this machine alone: slurmctld and a slurmd for each of its nodes, which trust everybody (auth/none)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.e2e.agents import family
from tests.e2e.commands import wait_until

PARTS = ("slurmctld", "slurmd", "slurmstepd", "sbatch")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=5
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


class SlurmCluster:
    """The cluster: its commands find it by `environment`."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        ports = _free_ports(num_nodes + 1)
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(host=host, port=ports[0], folder=folder)
        self.nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
        for node, port in zip(self.nodes, ports[1:], strict=True):
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000\n"
        self._configuration = folder / "slurm.conf"
        self._configuration.write_text(text)
        self.environment = {**os.environ, "SLURM_CONF": str(self._configuration)}
        self.run("slurmctld", "-f", str(self._configuration))
        for node in self.nodes:
            self.start(node)
        assert wait_until(lambda: self.run("sinfo", "-h", "-o", "%D %T") == f"{num_nodes} idle")

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def start(self, node: str) -> None:
        stepd = shutil.which("slurmstepd")
        assert stepd is not None
        self.run("slurmd", "-f", str(self._configuration), "-N", node, "-d", stepd)

    def kill(self, node: str) -> None:
        """Kills a node: its slurmd, and all that runs there."""
        pids = [self._pid(f"slurmd-{node}")]
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and self._is_of(process, node):
                pids += family(int(process.name))
        for pid in pids:
            kill(pid)

    def _is_of(self, process: Path, node: str) -> bool:
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_text()
        except OSError:
            return False
        ours = f"SLURM_CONF={self._configuration}".encode() in environment
        return ours and f"SLURMD_NODENAME={node}".encode() in environment and "slurmd" not in command.partition("\0")[0]

    def _pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def close(self) -> None:
        subprocess.run(["scancel", "--state=PENDING", "--me"], env=self.environment, check=False, timeout=60)
        for node in self.nodes:
            if (self.folder / f"slurmd-{node}.pid").exists():
                self.kill(node)
        kill(self._pid("slurmctld"))


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
