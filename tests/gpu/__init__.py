"""Every kernel on a card: against float64, against its roofline, and in the engine of a model.

`python tests/gpu/run_all.py`; without a card `--interpret` runs all but the times, at tiny sizes.
"""
