"""Schedulers: pure state machines. They turn timed stimuli into decisions with reasons."""
