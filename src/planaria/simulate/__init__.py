"""The protocol in virtual time: clocks, networks, workers and deaths that a seed decides. No clock, no I/O, no torch."""
