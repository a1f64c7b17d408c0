"""Programs for those who work on tritonnb."""
