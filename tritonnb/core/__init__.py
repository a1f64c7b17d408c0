"""What every other package uses: datatypes, tensors, requests, errors, events."""
