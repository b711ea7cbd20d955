"""Tokenizers: what they promise (`tokenizer`), the kinds there are, and how one is loaded."""
