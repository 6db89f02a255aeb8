"""The coordinator's process: the server around the machine, its journal, and its nodes.

- `process`, `settings`: machine, policy and server put together; `server`, `executor`: events in, commands out.
- `journal`, `manifests`: what is durable; `agents`, `nodes`, `remote_nodes`: who runs workers.
- `client`, `requests`: people's requests; `supervisor_link`, `kernel_kills`.

It decides nothing. A new command of the machine is a case of `executor`.
"""
