"""Commands of `radixd`; each file holds one."""
