"""Starts the services as child processes, watches them, ends them in order."""
