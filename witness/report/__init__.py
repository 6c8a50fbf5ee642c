"""Showing a run: a page that needs nothing but a browser, and the same on a terminal.

Both are made from the object of `witness.inspection` in its full form, and from nothing else. Every
text in it was written by the run's trainer and is shown as text, whatever it says.
"""
