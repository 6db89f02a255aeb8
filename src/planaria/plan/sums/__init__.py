"""Sums of gradients, as a plan has them.

- `rounds`: in which order groups are summed; `slices`: who adds up which part of a sum.
"""
