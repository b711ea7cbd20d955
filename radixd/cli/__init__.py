"""Commands of `radixd`; each file holds one."""

import os

# The C library of gRPC writes its own lines to the terminal; ours say what a person needs.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
