"""Every microbatch on what is left of a plan, without moving any state (ReCycle).

- `routes`: ways for microbatches over owners of layers; `plans`: plans made of them, with nodes that come.

Which routes are quickest is found by simulated steps, in the modules that search.
"""
