"""What is said, recorded and written down. Frozen structs; nothing is unpickled.

- `worker`, `agent`, `user`: messages between coordinator and workers, agents of nodes, and people (`status`, `add`).
- `events`: what the machine takes, and the commands that it gives.
- `records`: what a run tells the world (events.jsonl, metrics); `journal`: what is written before anybody acts.
- `plan_delta`: a plan as what differs from the one before, so that it travels quickly.
- `checkpoint_ref`, `run_measurements`: values that several of them bear.

A new message is a struct here and a case where it is read; records appear in the reference of the docs by themselves.
"""
