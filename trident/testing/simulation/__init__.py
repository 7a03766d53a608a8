"""`simulate`: the same rows through a topology again and again, each time with other faults, compared with a run without any.

Begin with `simulating.py`; `simulated_run.py` is one run, `fault_plan.py` what goes wrong in it.
"""
