"""Generated stubs; see protos/DESIGN.md."""
