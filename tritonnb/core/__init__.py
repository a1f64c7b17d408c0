"""Vocabulary of the house: datatypes, tensors, requests, errors, events."""
