"""The coordinator's process: the server around the machine, its journal, and its nodes.

- `process`, `settings`: machine, policy and server put together; `server`: events in; `executor`: commands out.
- `requests`: answers `planaria status`, `add`, `drain`, ... in the run; `client`: asks, from the user's side.
- `manifests`: completes checkpoints and removes old ones; `kernel_kills`: out of memory; `prices`: of nodes, asked for.
- `stream_blocks`: of a stream, for hosts without the run folder.
- `nodes`: through the supervisor; `agents`: nodes on other hosts; `remote_nodes`: the command that starts an agent.
- `supervisor_link`: messages between this process and its supervisor.

It decides nothing. A new command of the machine is a case of `executor`.
"""
