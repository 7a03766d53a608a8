"""What notebooks show: tables, and a display that is brought up to date in place. Nothing here imports IPython.

Begin with `live_display.py`. What a topology shows is in `trident/explain/`.
"""
