"""The limit on open files, each connection being one."""

import resource

ENOUGH = 1 << 16


def allow_many_files() -> None:
    """Raises the limit of this process, 1024 on most systems, as far as its user may and to what
    is enough for every connection that the public ports take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
