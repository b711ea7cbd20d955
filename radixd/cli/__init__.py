"""Commands of `radixd`, one a file, and what they share.

app, commands                  the entry point; what there is to call
up, doctor, version            and doctor's checks: doctor_checks (machine), doctor_backend,
                               doctor_server, of doctor_finding's form; model_shape: how large
generate, chat, answer         one prompt, or turns; what came back
preheat, pins, tree, sessions  prefixes in the cache
requests, explain, top, policy the books and decisions (top_view: a page of them)
bench, bench_*                 the lab of radixd.bench, on a terminal (measuring: meanwhile)
client, encryption             the way to a server, and its errors
request, silence               messages from what was typed; why a stream is silent
options, server_options        options as a dataclass; those of every client
terminal, message_json         output for people; for programs
"""

import os

# The C library of gRPC writes its own lines to the terminal; ours say what a person needs.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
