"""From the IR to what backends run: recipes' passes, partitions, samples, buckets."""
