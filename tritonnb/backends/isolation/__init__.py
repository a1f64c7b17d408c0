"""Model instances in their own processes: any backend, unchanged, behind a `BackendModelInstance` in the server.

The server starts one child process for each instance (`process`). Two socket pairs carry messages: a header in
MessagePack, and tensors behind it (`channel`, `codec`); large tensors are in shared memory without a name. On ``work``,
the instance's thread sends a command and handles the model's calls until the command has returned. On ``calls``, both
sides send everything that belongs to no command.

The modules in `child` run in the child only. Everything else runs in the server.
"""
