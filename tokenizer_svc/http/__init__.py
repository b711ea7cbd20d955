"""The HTTP gateway of the front: paths of OpenAI and our own, over the same code as gRPC."""
