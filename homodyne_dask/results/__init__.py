"""Results: `result_classes` has what people hold, made of data, and of the views and files of them.

Data hold values and tables, views show them, files keep them; `saved_results` reads them back. Files import
views and data, views import data, and data neither.
"""
