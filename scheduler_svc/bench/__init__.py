"""Measures the core, and installed peers on the same workload; nothing here serves.

`radixd bench core` runs these modules as processes of their own, so that the figures of one neither
warm nor burden those of another: `python -m scheduler_svc.bench` for the core,
`python -m scheduler_svc.bench.peers NAME` for a peer, which may live in another environment (hence
this package and `peers` import nothing but the standard library until they measure).

    core_figures       all of it, as one object
    tree_figures       the prefix tree
    step_figures       `schedule` and `apply`
    codec_figures      a plan on the wire
    scale, stopwatch   how much is measured; short stretches of code, timed
    peers              cycles drives vllm_scheduler and sglang_tree
"""
