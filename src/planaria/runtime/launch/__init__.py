"""A training run from job to result, and what else is started from a job.

training/   request, folder, data, profile, checkpoint, run, result · supervisor: keeps a coordinator serving
reference   the oracle: one process alone · export: weights for Hugging Face
rehearsal/  jobs under a script of failures · expected_losses
"""
