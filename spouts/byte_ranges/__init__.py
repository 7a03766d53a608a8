"""What all spouts of files share: which files there are, which of their bytes make up a batch, how far each was read.

Begin with `cutting.py` (the coordinator); `file_format.py` says what a kind of file has to tell it. `text_files` and `files`
are built on it.
"""
