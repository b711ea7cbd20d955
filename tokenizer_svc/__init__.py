"""The front: text to token ids and back, the public gRPC services, no queue and no tensor."""
