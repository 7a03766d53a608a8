"""A folder that stands first on the PYTHONPATH of a job under test, so that Python itself runs `sitecustomize.py`."""
