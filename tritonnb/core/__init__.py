"""The foundation of every other package: datatypes, tensors, requests, errors, events."""
