"""The page, and the REST interface behind it, in the shape of Storm UI's.

Begin with `cluster_pages.py`: what is served, as plain data. A single topology (`trident run --ui`) and a whole cluster
(`trident ui`) are two implementations of it.
"""
