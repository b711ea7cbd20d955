"""Every kernel on a card: against float64, against its roofline, and in the engine of a model.

`python tests/gpu/run_all.py`; without a card `--interpret` runs all but the times, at tiny sizes.

    run_all, session, report    the command; the order of a run, in a budget; what it found
    lanes, case_worker          processes that run tasks; one that runs cases
    case, cases_*, all_cases    what is asked of a kernel; of each; of all
    check_attention, speed_attention, large_batch    the same for attention, and its sizes
    engine_tasks, engine_model, engine_load          what is asked of an engine; which; under load
    place, comparison           a card or the interpreter; how far a result may be off
    work, roofs, timing         bytes and operations; what the card can do; the stopwatch
    test_*, lane_workers        tests of all this, without a card
"""
