"""HTTP/1.1 over TCP: connections, parsing and writing."""
