"""Where batches are processed: in Spark tasks or in this process. Begin with `runners.py`."""
