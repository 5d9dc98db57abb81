"""Commands of `python -m experiments`, one module each.

The first line of a module's docstring is the help text of the command.
"""
