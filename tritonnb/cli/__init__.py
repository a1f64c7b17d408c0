"""The command line ``tritonnb`` and the flags of ``tritonnb serve``."""
