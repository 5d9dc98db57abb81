"""Tables, figures and reports of the two papers, made from stored results."""
