"""Lines of text files, as they grow.

Begin with `spout.py` (`TextFileSpout`), then `cutting.py` (which bytes make up a batch) and `lines.py` (bytes to rows).
"""

from spouts.text_files.spout import TextFileSpout

__all__ = ["TextFileSpout"]
