"""A cluster in virtual time: one clock, one network, one disk, nodes, and an injector of faults."""
