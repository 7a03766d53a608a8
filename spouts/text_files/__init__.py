"""Lines of text files, as they grow.

Begin with `spout.py` (`TextFileSpout`), then `line_ends.py` (where a range may end), `text_blocks.py` (bytes to text) and
`lines.py` (text to rows). What it shares with other files is in `spouts/byte_ranges/`.
"""

from spouts.text_files.spout import TextFileSpout

__all__ = ["TextFileSpout"]
