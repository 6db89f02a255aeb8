"""The server around the coordinator's machine, in virtual time."""
