"""Mutations by machine: the protocol broken in thousands of small ways, each tried by random schedules.

- `sites`: the places of a module where something small can be changed, and functions with one of these changed.
- `trial`: what random schedules make of one, in a process that has only this one; `suite`: what tests make of it.
- `explained`: changes that break no promise, and why.
- `command`: the command, `make mutants`: draws some, tries them, and tells which of them nothing noticed.
"""
