"""The container files, read as text: no engine is needed."""
