"""The device that a worker computes on, and what waits for what on it.

- `device`: what the rest of the worker asks of it; `HostDevice` is the processors, where all is done at once.
- `streams`: a device that computes while its host goes on: computation, copies in, copies out and sums side by side.
- `queues`: the seam below that: streams, events and memory that others read. `cuda_queues`, `cuda_memory`: a GPU's;
  `stand_in`: their stand-in without a GPU, which stops at whatever no event orders (`hazards`).
- `opening`: which one a job's worker gets, and settings that give the same bits.

Whoever adds a wait or an event here adds what a test can see when it is gone (tests/runtime/worker/compute/device).
"""
