"""The progress of a run on a terminal, made from records.

progress  a live panel, or plain lines · rehearsal_progress: of a job under a script
output    a terminal or pipe that may go away
"""
