"""Programs that people run on a GPU today, as they write them: see `__main__`."""
