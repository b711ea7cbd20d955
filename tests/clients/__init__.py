"""Programs of other people, as they come, against a running server.

What each of them needed stands in README.
"""
