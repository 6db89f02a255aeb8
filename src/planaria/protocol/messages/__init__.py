"""What is said, recorded and written down. Frozen structs; nothing is unpickled.

- `message`: what each of them is, and the protocol's version.
- `from_worker`, `to_worker`: between workers and the coordinator; `agent`: agents of nodes; `user`: people (`status`).
- `events`: what the machine takes, and the commands that it gives.
- `records`: what a run tells the world (events.jsonl, metrics); `journal`: what is written before anybody acts.
- `plan_delta`: a plan as what differs from the one before, so that it travels quickly; `journal_chain`: what the
  journal has of an entry, likewise.
- `checkpoint_ref`, `run_measurements`: values that several of them bear.

A new message is a struct here and a case where it is read; records appear in the reference of the docs by themselves.
"""
