"""Lower a program to its backends: recipe passes, partitions, samples, buckets."""
