"""`planaria plan` and `planaria profile`: what a job would do, without training.

plan_commands  arguments · plan_view, profile_view: what is shown
costs_source   a job or a profile · profile_cache: profiles measured on this machine before
"""
