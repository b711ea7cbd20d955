"""Tests of the worker: its arithmetic against transformers, its gate against bad plans."""
