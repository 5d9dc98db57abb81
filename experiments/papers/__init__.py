"""Tables, figures and reports on the papers, made from stored results."""
