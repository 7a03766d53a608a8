"""Keys and values as bytes: type-faithful, versioned, never code; begin with `codec.py`."""
