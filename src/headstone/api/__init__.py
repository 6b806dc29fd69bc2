"""What decides beneath the command line and the Python library: a call for each capability, with values in and values out.

`headstone/__init__.py` names what is public; the verbs of `cli/` parse, call the same functions, and render. Kept light: the
process `headstone` handles signals (`stopping.py`) before it imports anything that takes long.
"""
