"""The same protocol in virtual time: traces, clusters, cost. Core: no I/O, no clock, no randomness but from a seed."""
