"""The step in progress, its commit, and the checkpoints of what was committed.

ballot, commit: votes, and what a commit decides · halt_reports: what halted workers say after a loss
recovery: the account of one recovery · retained_replicas, damage: what else is known of state
checkpoint, cadence what is written by whom, and when: time_accounting where a run's time went
"""
