"""Jobs under a script of failures on this machine, and simulations on several cores.

rehearsal, replay  one job, its script played on real processes · comparison: one after another under each policy
simulations        pieces of work dealt out to processes
"""
