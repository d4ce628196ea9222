"""`HttpLimits`: what a server takes from strangers, and for how long."""

from kvc.schema.frozen import frozen


@frozen
class HttpLimits:
    """The limits of a server.

    Attributes:
        body: the greatest size of a request, in bytes.
        tokens: the greatest number of tokens of an answer.
        queue: the greatest number of requests that wait to be prepared, and of those
            that wait for embeddings and transcriptions.
        seconds: after how many seconds an answer ends.
        reading: within how many seconds a request must have arrived.
        idle: after how many seconds a connection without a request is closed.
        connections: the greatest number of connections.
    """

    body: int = 20_000_000
    tokens: int = 4096
    queue: int = 256
    seconds: float = 600.0
    reading: float = 30.0
    idle: float = 30.0
    connections: int = 512
