"""Mail between the workers of a topology, over ZeroMQ.

Begin with `linked_mail.py`; what travels is in `frames.py`, who may connect in `trident/spark/link_keys.py`.
"""
