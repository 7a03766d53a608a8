"""Maps around a backing map: caches that never give a stale value, chunks, serializers.

Begin with `cached.py`; `forwarding.py` says how a wrapper offers what the wrapped map offers.
"""
