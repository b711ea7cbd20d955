"""The pure scheduler: facts in, decisions out.  No clock, no IO, no randomness, no logging."""
