"""Jobs, clusters and faults drawn from seeds, and the search for those that break a promise."""
