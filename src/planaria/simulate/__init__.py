"""The protocol in virtual time: clock, network, workers and deaths that a seed decides. No real clock, I/O or torch."""
