"""Commands of `python -m experiments`. Each module is a command.

The first line of a module's docstring is the help text of the command.
"""
