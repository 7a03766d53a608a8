"""Keys and values as bytes: type-faithful, versioned, never code.

Begin with `codec.py`; `serializers.py` has the stored forms of the three kinds of state, `equal_keys.py` one form for
all equal keys.
"""
