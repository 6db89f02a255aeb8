"""The simulation of a step's forwards, backwards and messages in virtual time.

`simulation`: programs, orders of work, or a pipeline, run; `worker_beats`: what a worker does, beat by beat, as it
follows from its instructions; `channels`: what is sent and awaited between workers; `times`: what running them tells.
"""
