"""What a model says in a conversation, taken apart: thoughts, calls of tools, the answer.

chat_format, call_formats     how a model answers, and writes its calls
asked, call_grammar           what a request asks for; a grammar of calls and forms
output_parser                 takes an output apart while it comes
incoming_text, json_text      text in pieces; members of JSON as they were written
"""
