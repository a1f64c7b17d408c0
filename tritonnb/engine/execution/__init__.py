"""The threads of the instances, and the event loop that owns all mutable state."""
