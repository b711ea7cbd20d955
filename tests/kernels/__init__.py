"""Each kernel in Triton's interpreter against its plain-torch reference."""
