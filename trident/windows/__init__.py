"""Windows, joins over time, processes with timers: what they hold between batches, and what they emit.

Begin with `firing.py` (one batch of a window); `grid.py` says where windows lie, `window_state.py` what the state holds.
`join_update.py` is one batch of a join over time, `timer_update.py` one of a process with timers.
"""
