"""Tokenizers: what they promise, the kinds there are, and how one is loaded.

tokenizer                               what the front asks of one
load                                    files -> tokenizer: folder_tokenizer, gguf_tokenizer
library_tokenizer, byte_tokenizer       on the library, of any file; for the fake worker
table_decoder, window_decoder           ids to text: by a table of bytes, and where there is none
spelling_guard                          control tokens that callers spell stay text
chat_template, conversation             a conversation rendered; as templates take it
template_sandbox, template_sizes        limits on templates, which are programs of strangers
template_abilities, default_tools       what one can do; tools for those that know none
"""
