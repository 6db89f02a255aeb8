"""The progress of a run on a terminal, made from records. The words are `planaria.runtime.run_folder.sentences`'.

- `progress`: a live panel, or plain lines, and the lines at the end; `rehearsal_progress`: of a job under a script.
- `output`: a terminal or pipe that may go away.
"""
