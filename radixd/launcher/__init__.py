"""Starts the services as child processes, watches them, ends them in order.

supervisor                 start, readiness, watch, end
files, ports               looked at before anything starts
child, service_process     a service seen from here; the first code in it
stack_readiness            what a starting server still lacks
log_line, progress         children's lines on a terminal; ours, and a live one below
"""
