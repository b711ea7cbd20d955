"""What a model says in a conversation, taken apart: thoughts, calls of tools, the answer."""
