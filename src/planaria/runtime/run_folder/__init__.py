"""The run folder: what lies where in runs/NAME, who writes it, and what is told in it.

run_folder  its names · recorder, lines: events, metrics, summary
claim       who writes it · sentences: records as sentences, the same words everywhere
"""
