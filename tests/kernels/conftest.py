"""The interpreter is chosen when a kernel's file is first read: before any test imports one."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
