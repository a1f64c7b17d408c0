"""Schedulers: pure state machines. Stimuli with a time go in, decisions with a reason come out."""
