"""What the services share: settings, logs, channels, gRPC servers, model files.  Floor 2."""
