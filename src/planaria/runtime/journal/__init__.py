"""The journal of a run, which makes what the coordinator decided durable, and the right to write it.

- `journal`: what every journal can do, and which entries it may throw away.
- `sqlite_journal`: a file in the run folder, for a coordinator whose host does not die.
- `etcd_journal`: in etcd, for one whose host may: any host that takes the lead goes on from there.
- `plans`, `leadership`, `coordinator_place`: for those who look at a run, its plans, who leads, and where.
- `lead`: the right to coordinate a run whose journal is in etcd, held by a lease; `etcd`: the members that are asked.
- `etcd_tls`: certificates for them.

May import the protocol's messages, `planaria.runtime.wire` and `planaria.runtime.thresholds`.
"""
