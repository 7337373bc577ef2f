"""Applications: built on fits, and no part of one. Nothing of the core imports them.

They know of this program what users know, `import homodyne_dask as hd`, with `errors`, `text` and:

- `results.data`: values and tables of fits; `results.files`: folders of results with their locks, JSON with a
  checksum, lists of scans; `results.views`: the templates of pages, the style and the pixels of figures.
- `store`: a scan and its chunks (`scan`), their sizes and names (`schema`), files written whole (`files`).
- `cli`, for their commands: printing, exit status, options, configurations, the fits of one command.

Never the insides of a fit: `fitting`, `solver`, `sweep`, `kernels`, `cluster`, `models`. What they need of
those is public, or comes with a plan or a result. pyproject.toml has the contract and its exceptions.
"""
