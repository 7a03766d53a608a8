"""What notebooks show: tables, and a display that is brought up to date in place. Nothing here imports IPython.

Begin with `live_display.py`. The picture of a topology is drawn in `trident/explain/`.
"""
