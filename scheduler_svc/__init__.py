"""Owns the prefix tree and the books of every token slot; decides what runs.  CPU only.

`core` decides and is pure; the files beside it are the shell: clock, sockets, logs.
"""
