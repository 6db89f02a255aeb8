"""What a job's nodes are: processes of this machine, or agents on other hosts.

- `local_nodes`: worker processes, a process group a node; `forkserver`: forks them (and coordinators) in milliseconds,
  and sets up what each writes into its file in logs/.
- `node_agent`: `planaria agent`, offers a host to a coordinator, told by `agent_settings`, over `coordinator_link`.
- `own_folder`: the run folder of a host that does not see the coordinator's; `own_stream`: blocks of a stream there.
- `stopped_processes`: which processes are stopped; `parent`: ties a process to its parent.
- `link_prober`: measures a host's links to others.

A new kind of node starts workers with the settings that `runtime.worker.settings` names.
"""
