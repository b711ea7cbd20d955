"""Tests, in folders named after what they hold to account."""
