"""This machine, and what befalls a process on it.

- `limits`: most workers, open files, memory, shared cores.
- `boot`: which boot of which host this is.
- `interrupts`: Ctrl-C and other signals.
"""
