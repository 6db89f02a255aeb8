"""This machine, and what befalls a process on it.

- `limits`: most workers, open files, memory, shared cores.
- `interrupts`: Ctrl-C and other signals.
"""
