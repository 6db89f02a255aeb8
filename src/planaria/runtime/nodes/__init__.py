"""What a job's nodes are: processes of this machine, or agents on other hosts.

- `local_nodes`, `forkserver`: worker processes, forked in milliseconds; `node_agent`: offers a host to a coordinator.
- `stopped_processes`: which processes are stopped.

A new kind of node starts workers with the settings that `runtime.worker.settings` names.
"""
