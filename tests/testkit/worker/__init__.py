"""Worker processes in virtual time: the real machine of the worker's half, with symbols for tensors."""
