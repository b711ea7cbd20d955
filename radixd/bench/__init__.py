"""Four fixed workloads, the client that plays them, and the arithmetic of what it saw.

Floor 3 beside the command line.  It speaks the public gRPC, and to peers their OpenAI API; the
commands are cli/bench*.py.

    workload, turns                 the workloads, and when each of their requests is sent
    player, server_channel          plays one against a server over gRPC
    peer, peer_player               the same against another make, over HTTP
    services, child                 servers of its own, and measuring processes
    figures, profile                from arrivals to figures; where the time of steps went
    machine, cores                  what a figure was measured on; which cores took part
    front, front_*                  `radixd bench front`: load, the two doors, figures, a long text
    pressure, pressure_*            `radixd pressure`: a pool asked for twice what it holds
    core_child, core_report         `radixd bench core`, which scheduler_svc.bench measures
"""
