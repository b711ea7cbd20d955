"""The forward pass in C++, through ctypes: no torch."""
