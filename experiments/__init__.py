"""What was run, and how: a recipe is a module here with a function `get_config()`."""
