"""Checkpoints on disk.

manifest  which files make a whole checkpoint, with checksums · state: a group's parameters and moments
numerics  the version of the numbers that a checkpoint goes on with
"""
