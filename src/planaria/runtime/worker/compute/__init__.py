"""What a worker computes with, and what it holds.

- `engine`, `layers`, `split_backward`: a model's forwards and backwards; `accumulator`: exact and fast sums.
- `holdings`, `replica`: parameters and optimizer state; `device`, `device_clock`, `stopwatch`.
- `shared_memory`: vectors that others of the host read in place; `seeds`: functions of what is computed.

Bits depend on (seed, step, microbatch, layer) alone: nothing here may look at who computes, or when.
"""
