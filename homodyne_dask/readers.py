"""What a reader of another package needs (docs: extending): a source of the bins of a file, and errors.

>>> hd.readers.source_of.__name__
'source_of'
"""

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.readers.source import Source, source_of

__all__ = ["IngestOptions", "Source", "SourceError", "source_of"]
