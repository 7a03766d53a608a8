"""Mail between the workers of a topology, over ZeroMQ.

Begin with `linked_mail.py`; what travels is in `frames.py`, who may connect in `link_keys.py`.
"""
