"""Frames, sockets and connections, for the coordinator's server and the workers' doors.

- `control_frames`, `connection`: messages on a control connection; `socket_server`: one port, many connections.
- `listener`, `unauthenticated`: who is let in by the job's token; `sockets`: what the kernel is asked of a connection.

Nothing is unpickled, and nothing here knows what a message means.
"""
