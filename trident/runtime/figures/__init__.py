"""What the operations of a topology have counted in its committed batches. Begin with `operation_totals.py`."""
