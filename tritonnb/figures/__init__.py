"""Still figures of recordings: what `Recording.plot` draws."""
