"""Runs plans, on Spark or in this process, and commits states; the only part that imports PySpark.

Begin with `drive.py`, then `loop/loop.py`: the life of a batch. `engine` brings tuples to the code of `steps` and
`windows`, `commit` brings the results to the states, `reading` serves readers, `letters` keeps failed tuples.
"""
