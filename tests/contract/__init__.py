"""What must stay true of every message that crosses a process, whoever writes either side."""
