"""`kvc bench`: how fast bundles run, measured in processes of their own, in turn."""
