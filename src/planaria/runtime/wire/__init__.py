"""Frames, sockets and connections, for the coordinator's server and the workers' doors.

- `control_frames`, `connection`: messages on a control connection; `socket_server`: one port, many connections.
- `listener`: lets in who has the job's token; `unauthenticated`: limits those that have not shown it, and what is told.
- `sockets`: what the kernel is asked of a connection.
- `tls`: sockets that show a certificate and ask for one; `certificates`: makes those of a run.
- `link_probe`: what the link to another host takes.

Nothing is unpickled, and nothing here knows what a message means.
"""
