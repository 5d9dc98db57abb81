"""Papers: each module makes the tables and figures of one, from the results that are kept."""
