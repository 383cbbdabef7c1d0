"""Numbers among the inputs of a captured graph: `choose.py` lists what is done with them."""
