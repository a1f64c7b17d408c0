"""The threads that models run on, and the event loop that owns all mutable state."""
