"""What a worker computes with, and what it holds.

- `engine`: model, data and device; `layers`: forwards and backwards; `split_backward`: in two passes.
- `compilation`: layers compiled by torch, each alone.
- `weight_copies`: copies of weights in bfloat16 or float16, made once a step.
- `statistics`: running statistics of batch norms.
- `accumulator`: sums of gradients, exact or fast; `replica`: parameters and optimizer state; `holdings`: all.
- `device/`: which one, its streams and events, settings that give the same bits.
- `device_clock`, `stopwatch`: its time, and how it is measured.
- `shared_memory`: vectors that others of the host read in place; `seeds`: functions of what is computed.

Bits depend on (seed, step, microbatch, layer) alone: nothing here may look at who computes, or when.
"""
