"""The cache folder, its content-addressed entries, and facts of the machine that keys hold."""
