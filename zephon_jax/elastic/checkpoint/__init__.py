"""Lanes in files: one small file a process, a manifest last, restored by any number of hosts."""

__all__: list[str] = []
