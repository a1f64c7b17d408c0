"""The effects of requests on a server; several servers behind one address handle requests by them."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """The effect of a route or an RPC.

    Each route and each RPC of the endpoints has one, so that `tritonnb.scale` treats all of them by rule.
    """

    #: Reads what is the same on every server that has the model.
    READ = "read"
    #: Runs a model; the requests of a sequence have to reach the same server.
    INFER = "infer"
    #: Reads what differs between servers: responses of several servers are merged.
    MERGE = "merge"
    #: Changes the state of the server: it is applied on every server.
    CHANGE = "change"
    #: Gives the server access to memory of its machine: only a server that the client addresses itself can do that.
    MEMORY = "memory"
