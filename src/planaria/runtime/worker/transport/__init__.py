"""Messages and state between workers.

- `transport`, `frames`: what goes to which peer, and how it is written; `mailbox`: where what came is put down.
- `outgoing`: one thread that sends on all connections, and how state's own ones give way; `incoming`: one that reads.
- `outbox`: messages whose bytes come from the device first; `lending`: those that stay in its memory.
- `pair_groups`: messages by NCCL or gloo, on request.
- `sync`: sums of gradients between owners; `grid_encoding`: exact ones as 32-bit integers; `pacing`: how fast they go.
- `stage_mates`: sums over the devices of a stage that share a microbatch.
- `state_transfer`: replicas on their way.
"""
