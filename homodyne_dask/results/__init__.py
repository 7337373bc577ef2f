"""Results: data hold values and tables, views show them, files keep them.

Files import views and data, views import data. Methods of data that show or write a result import the view
or the file when they are called.
"""
