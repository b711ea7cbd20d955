"""Constrained output at the door: what a client wrote becomes a grammar that the worker follows.

compiler, child               off the event loop, with limits; the process that does it
forms                         each form in the notation of the library
json_schema, schema_endings   what is checked of a JSON Schema first
gbnf, gbnf_grammar            llama.cpp's notation, read and translated
form_error                    why one cannot be served
"""
